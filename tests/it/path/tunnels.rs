//! What is not a plain exchange of bodies: upgraded connections, and answers that end with trailers.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::support::fleet::Setup;
use crate::support::http::Raw;
use crate::support::ports;

/// An endpoint that talks HTTP by hand: an upgrade becomes an echo, a POST is answered with `answer`.
async fn by_hand(answer: &'static str) -> (SocketAddr, JoinSet<()>) {
    let (listener, address) = ports::listener().await;
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            let (socket, _) = listener.accept().await.expect("a connection");
            connections.spawn(async move {
                // Whoever asks may leave at any time.
                drop(serve(socket, answer).await);
            });
        }
    });
    (address, tasks)
}

async fn serve(mut socket: TcpStream, answer: &str) -> std::io::Result<()> {
    let head = read_head(&mut socket).await?;
    if head.to_ascii_lowercase().contains("upgrade: websocket") {
        let switch =
            "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
        socket.write_all(switch.as_bytes()).await?;
        let (mut from, mut to) = socket.split();
        tokio::io::copy(&mut from, &mut to).await?;
    } else if head.starts_with("POST") {
        socket.write_all(answer.as_bytes()).await?;
    } else {
        let nothing = "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
        socket.write_all(nothing.as_bytes()).await?;
    }
    Ok(())
}

async fn read_head(socket: &mut TcpStream) -> std::io::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(socket.read_u8().await?);
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

#[tokio::test]
async fn an_upgraded_connection_is_a_tunnel_in_both_directions() {
    let (address, _double) = by_hand("").await;
    let setup = Setup::engines(0).and_double("tunnel", address);
    setup
        .run(async |fleet| {
            let mut client = TcpStream::connect(fleet.envoy.picked()).await.unwrap();
            let request = "GET /v1/realtime HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
            client.write_all(request.as_bytes()).await.unwrap();
            let head = read_head(&mut client).await.unwrap();
            assert!(head.starts_with("HTTP/1.1 101 Switching Protocols\r\n"), "{head}");
            for word in ["one", "two", "three"] {
                client.write_all(word.as_bytes()).await.unwrap();
                let mut back = vec![0; word.len()];
                client.read_exact(&mut back).await.unwrap();
                assert_eq!(back, word.as_bytes());
            }
            let decision = &fleet.picker.decisions().await[0];
            assert_eq!(decision["request"]["load_only"], "method");
            let tunnel = fleet.picker.endpoint("tunnel").await;
            assert_eq!(tunnel["in_flight"], 1);
        })
        .await;
}

#[tokio::test]
async fn trailers_of_an_answer_reach_the_client() {
    let answer = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: x-checksum\r\n\
        content-type: application/json\r\n\r\n\
        28\r\n{\"usage\":{\"prompt_tokens\":7,\"total\":40}}\r\n0\r\nx-checksum: abc\r\n\r\n";
    let (address, _double) = by_hand(answer).await;
    let setup = Setup::engines(0).and_double("by-hand", address);
    setup
        .envoy(|envoy| {
            envoy.http1_trailers = true;
            // See `EnvoyConfig::retries`.
            envoy.retries = false;
        })
        .run(async |fleet| {
            let headers = [("te", "trailers"), ("content-type", "text/plain")];
            let to = fleet.envoy.picked();
            let mut raw = Raw::post_chunked(to, "/v1/completions", &headers).await;
            raw.end(&[]).await;
            let answer = raw.answer().await;
            assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
            assert!(
                answer.contains("\"total\":40}}\r\n0\r\nx-checksum: abc\r\n"),
                "{answer}"
            );
            let decision = fleet.picker.decisions().await.remove(0);
            assert_eq!(decision["outcome"]["prompt_tokens"], 7, "{decision}");
        })
        .await;
}
