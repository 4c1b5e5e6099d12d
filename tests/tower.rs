//! The layer in several server processes on one Redis.

use std::time::Duration;

use http_body_util::{BodyExt, Empty};
use hyper::{Request, StatusCode, body::Bytes};
use hyper_util::rt::TokioIo;
use lock_tests::{RedisServer, role};
use tokio::{net::TcpStream, task::JoinSet};

#[tokio::test]
async fn ten_thousand_requests_on_ten_keys_through_three_servers_lose_no_update() {
    const REQUESTS: usize = 10_000;
    const KEYS: usize = 10;
    const CLIENTS: usize = 60;
    let redis = RedisServer::start().await;
    let mut servers: Vec<_> = (0..3).map(|_| role!("serve", redis.url(), redis.address())).collect();
    let mut ports = Vec::new();
    for server in &mut servers {
        ports.push(server.expect("serving", Duration::from_secs(20)).await);
    }

    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        let address = format!("127.0.0.1:{}", ports[client % ports.len()]);
        clients.spawn(async move {
            let stream = TcpStream::connect(&address).await.expect("the server listens");
            let (mut sender, connection) =
                hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.expect("HTTP/1");
            tokio::spawn(connection);
            let mut fences = Vec::new();
            for request in (client..REQUESTS).step_by(CLIENTS) {
                let key = request % KEYS;
                let post = Request::post(format!("/count/{key}")).header("host", &address);
                let answer = sender.send_request(post.body(Empty::<Bytes>::new()).expect("a request")).await;
                let answer = answer.expect("an answer");
                assert_eq!(answer.status(), StatusCode::OK);
                let body = answer.into_body().collect().await.expect("a body").to_bytes();
                let fence: u64 = std::str::from_utf8(&body).expect("text").parse().expect("a number");
                fences.push((key, fence));
            }
            fences
        });
    }
    let mut fences: Vec<_> = clients.join_all().await.into_iter().flatten().collect();

    let mut counted = 0;
    for key in 0..KEYS {
        let number = redis.call(&["GET", &format!("{key}:number")]).await.text().expect("it was counted");
        counted += number.parse::<usize>().expect("a number");
    }
    assert_eq!(counted, REQUESTS, "no update is lost");
    fences.sort_unstable();
    fences.dedup();
    assert_eq!(fences.len(), REQUESTS, "every holder of a key had a fencing token of its own");
}
