// An HTTP server on Bun: `bun bun_serve.js PORT-FILE`. Answers with 300,000 times x; ends when it is asked for /stop.
const fs = require("fs"), file = process.argv[2], answer = "x".repeat(300000);
const server = Bun.serve({
  hostname: "127.0.0.1",
  port: 0,
  fetch(request) {
    if (new URL(request.url).pathname !== "/stop") return new Response(answer);
    setTimeout(() => process.exit(0), 50);
    return new Response("bye");
  },
});
fs.writeFileSync(file + ".new", String(server.port));
fs.renameSync(file + ".new", file);
