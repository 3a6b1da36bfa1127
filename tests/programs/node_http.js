// node's own http, both ends: `server|client ADDRESS PORT [ROUNDS]`. The server answers with the body that it was sent, or with this
// file; the client has ten requests under way on ten kept connections, and some on connections of their own, whose numbers the server's
// next files have, and compares every body.
'use strict';
const http = require('http');
const crypto = require('crypto');
const fs = require('fs');
const [role, host, port, rounds] = process.argv.slice(2);

function serve() {
  const server = http.createServer((request, response) => {
    if (request.url.startsWith('/bytes/')) {
      response.end(Buffer.alloc(Number(request.url.slice(7)), 'y'));
      return;
    }
    if (request.url === '/file') {
      fs.createReadStream(__filename).pipe(response);
      return;
    }
    request.pipe(response);
  });
  // On a slow machine a connection may rest for longer than node's five seconds, and a request must not meet its end.
  server.keepAliveTimeout = server.headersTimeout = server.requestTimeout = 0;
  server.listen(Number(port), host);
  process.on('SIGTERM', () => process.exit(0));
}

function one(agent, path, body) {
  return new Promise((resolve, reject) => {
    const request = http.request({ host, port, agent, path, method: body ? 'POST' : 'GET' }, (response) => {
      const parts = [];
      response.on('data', (part) => parts.push(part));
      response.on('end', () => resolve(Buffer.concat(parts)));
      response.on('error', reject);
    });
    request.on('error', reject);
    request.end(body);
  });
}

async function ask() {
  const agent = new http.Agent({ keepAlive: true, maxSockets: 10 });
  const file = fs.readFileSync(__filename);
  let n = 0;
  const worker = async (id) => {
    for (let i = 0; i < Number(rounds || 20); i++) {
      const body = crypto.randomBytes([1, 1000, 20000, 300000, 1048576][(id + i) % 5]);
      if (!(await one(agent, '/echo', body)).equals(body)) throw new Error('another body came back');
      if ((await one(agent, '/bytes/1024')).toString() !== 'y'.repeat(1024)) throw new Error('not 1 KiB of y');
      if (!(await one(false, '/echo', body)).equals(body)) throw new Error('another body came back by a new connection');
      if (!(await one(agent, '/file')).equals(file)) throw new Error('not the file');
      n += 4;
    }
  };
  await Promise.all(Array.from({ length: 10 }, (_, id) => worker(id)));
  agent.destroy();
  console.log(`${n} requests, all bodies as sent`);
}

if (role === 'server') serve();
else ask().catch((e) => { console.log(e.stack); process.exit(1); });
