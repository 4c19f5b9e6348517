//! An async server that leaves the computing to a workqueue: each connection is a task, each request a closure that is awaited,
//! and when too many requests wait, the tasks wait for room instead of piling up more.
//!
//! The library has no part in the async runtime: a handle is a future that any executor can poll.
//!
//! `cargo run -p cmwq --example async_server`

use cmwq::Workqueue;
use std::io::{Error, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// What must not run on the thread that serves the sockets.
fn checksum(block: &[u8]) -> u64 {
    block.iter().fold(0xcbf2_9ce4_8422_2325, |h, &b| {
        (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3)
    })
}

async fn serve(mut socket: TcpStream, wq: Workqueue) -> Result<()> {
    loop {
        let len = match socket.read_u32().await {
            Ok(n) if n <= 1 << 20 => n as usize,
            Ok(n) => return Err(Error::other(format!("a block of {n} bytes is too large"))),
            Err(_) => return Ok(()), // the client is gone
        };
        let mut block = vec![0; len];
        socket.read_exact(&mut block).await?;
        // Waits for room in the queue, then for the result; the thread serves other connections meanwhile.
        let sum = wq
            .spawn_when_ready(move || checksum(&block))
            .await
            .await
            .map_err(Error::other)?;
        socket.write_u64(sum).await?;
    }
}

async fn client(address: std::net::SocketAddr, n: u8) -> Result<()> {
    let mut socket = TcpStream::connect(address).await?;
    for i in 0..50u8 {
        let block = vec![n ^ i; 4096];
        socket.write_u32(block.len() as u32).await?;
        socket.write_all(&block).await?;
        assert_eq!(socket.read_u64().await?, checksum(&block));
    }
    Ok(())
}

fn main() -> Result<()> {
    let wq = Workqueue::builder("checksum")
        .max_pending(16)
        .build()
        .map_err(Error::other)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()?;
    let queue = wq.clone();
    runtime.block_on(async move {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let wq = queue.clone();
                tokio::spawn(async move {
                    if let Err(e) = serve(socket, wq).await {
                        eprintln!("connection: {e}");
                    }
                });
            }
        });
        let clients: Vec<_> = (0..8).map(|n| tokio::spawn(client(address, n))).collect();
        for c in clients {
            c.await.map_err(Error::other)??;
        }
        Ok::<(), Error>(())
    })?;
    drop(runtime);
    wq.flush().map_err(Error::other)?;
    let s = wq.stats();
    println!(
        "{} requests, run p50 {:?}",
        s.completed,
        s.run.quantile(0.5)
    );
    assert_eq!(s.completed, 400);
    wq.destroy().map_err(Error::other)
}
