//! The layer in several server processes on one Redis.

use http_body_util::{BodyExt, Empty};
use hyper::{Request, StatusCode, body::Bytes};
use hyper_util::rt::TokioIo;
use lock_tests::{RedisServer, SOON, role};
use tokio::{net::TcpStream, task::JoinSet};

#[tokio::test]
async fn two_thousand_requests_on_ten_keys_through_three_servers_lose_no_update_and_fences_rise() {
    const REQUESTS: usize = 2_000;
    const KEYS: usize = 10;
    const PER_KEY: u64 = (REQUESTS / KEYS) as u64;
    const CLIENTS: usize = 60;
    let redis = RedisServer::start().await;
    let mut servers: Vec<_> = (0..3).map(|_| role!("serve", redis.url(), redis.address())).collect();
    let mut ports = Vec::new();
    for server in &mut servers {
        ports.push(server.expect("serving", SOON).await);
    }

    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        let address = format!("127.0.0.1:{}", ports[client % ports.len()]);
        clients.spawn(async move {
            let stream = TcpStream::connect(&address).await.expect("the server listens");
            let (mut sender, connection) =
                hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.expect("HTTP/1");
            tokio::spawn(connection);
            let mut counts = Vec::new();
            for request in (client..REQUESTS).step_by(CLIENTS) {
                let key = request % KEYS;
                let post = Request::post(format!("/count/{key}")).header("host", &address);
                let answer = sender.send_request(post.body(Empty::<Bytes>::new()).expect("a request")).await;
                let answer = answer.expect("an answer");
                assert_eq!(answer.status(), StatusCode::OK);
                let body = answer.into_body().collect().await.expect("a body").to_bytes();
                let text = std::str::from_utf8(&body).expect("text");
                let (number, fence) = text.split_once(' ').expect("a number and a fencing token");
                let number: u64 = number.parse().expect("a number");
                counts.push((key, number, fence.parse::<u64>().expect("a fencing token")));
            }
            counts
        });
    }
    let mut counts: Vec<_> = clients.join_all().await.into_iter().flatten().collect();

    counts.sort_unstable();
    for key in 0..KEYS {
        let of_key: Vec<_> = counts.iter().filter(|count| count.0 == key).collect();
        assert!(of_key.iter().map(|count| count.1).eq(1..=PER_KEY), "key {key}: an update was lost");
        let number = redis.call(&["GET", &format!("{key}:number")]).await.text();
        assert_eq!(number, Some(PER_KEY.to_string()));
        let falls = of_key.windows(2).find(|pair| pair[0].2 >= pair[1].2);
        assert_eq!(falls, None, "key {key}: (key, number, fencing token) do not rise together");
    }
}
