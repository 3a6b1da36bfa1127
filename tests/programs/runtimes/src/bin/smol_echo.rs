//! An echo server on smol: `smol_echo PORT-FILE`; ends when its first connection has.
use smol::io::{AsyncReadExt, AsyncWriteExt};
fn main() -> std::io::Result<()> {
    smol::block_on(async {
        let l = smol::net::TcpListener::bind("127.0.0.1:0").await?;
        let p = std::env::args().nth(1).unwrap();
        std::fs::write(format!("{p}.new"), l.local_addr()?.port().to_string())?;
        std::fs::rename(format!("{p}.new"), &p)?;
        let (mut s, _) = l.accept().await?;
        let mut b = vec![0; 65536];
        loop {
            let n = s.read(&mut b).await?;
            if n == 0 { return Ok(()); }
            s.write_all(&b[..n]).await?;
        }
    })
}
