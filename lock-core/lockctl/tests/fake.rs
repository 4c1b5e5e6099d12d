//! A server that says of itself what a test wants: what no real one can be made to say in a test, such as a wrong clock.

use std::{
    collections::HashMap,
    io::{BufRead, BufReader, Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    sync::Arc,
    thread,
    time::SystemTime,
};

/// A server that answers a few commands, for as long as the test process lives.
pub(crate) struct Fake {
    pub(crate) url: String,
}

/// What it says.
#[derive(Clone, Default)]
pub(crate) struct Says {
    /// Fields of `INFO`, which replace those of a healthy server.
    pub(crate) info: Vec<(&'static str, String)>,
    /// What `CLUSTER INFO` says, of a cluster of this node alone.
    pub(crate) cluster: &'static str,
    /// The command at which it closes the connection.
    pub(crate) ends_at: &'static str,
    /// How many seconds its clock is ahead.
    pub(crate) ahead: i64,
}

impl Fake {
    pub(crate) fn start(says: Says) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
        let url = format!("redis://{}", listener.local_addr().expect("it is bound"));
        let port = listener.local_addr().expect("it is bound").port();
        let says = Arc::new(says);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let says = Arc::clone(&says);
                thread::spawn(move || serve(&stream, port, &says));
            }
        });
        Self { url }
    }
}

/// Answers a client to its end.
fn serve(mut stream: &TcpStream, port: u16, says: &Says) -> Option<()> {
    let mut input = BufReader::new(stream);
    loop {
        let count: usize = line(&mut input)?.strip_prefix('*')?.parse().ok()?;
        let words = (0..count).map(|_| {
            let length: usize = line(&mut input)?.strip_prefix('$')?.parse().ok()?;
            let mut bytes = vec![0; length + 2];
            input.read_exact(&mut bytes).ok()?;
            String::from_utf8(bytes[..length].to_vec()).ok()
        });
        let words: Vec<String> = words.collect::<Option<_>>()?;
        if words[0] == says.ends_at {
            return None;
        }
        stream.write_all(reply(&words, port, says).as_bytes()).ok()?;
    }
}

fn line(input: &mut impl BufRead) -> Option<String> {
    let mut line = String::new();
    input.read_line(&mut line).ok().filter(|count| *count > 0)?;
    Some(line.trim_end().to_owned())
}

fn reply(words: &[String], port: u16, says: &Says) -> String {
    let bulk = |text: &str| format!("${}\r\n{text}\r\n", text.len());
    match (&*words[0], words.get(2)) {
        ("INFO", _) => {
            let mut fields: HashMap<_, _> = HEALTHY.into_iter().map(|(name, value)| (name, value.to_owned())).collect();
            fields.extend(says.info.iter().cloned());
            // A server that does not say it.
            fields.retain(|_, value| !value.is_empty());
            bulk(&fields.into_iter().map(|(name, value)| format!("{name}:{value}\r\n")).collect::<String>())
        }
        ("CONFIG", Some(name)) => {
            let value = SETTINGS.iter().find(|(known, _)| known == name);
            format!("*2\r\n{}{}", bulk(name), bulk(value.map_or("0", |(_, value)| value)))
        }
        ("TIME", _) => {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
            let seconds = now.as_secs().saturating_add_signed(says.ahead);
            format!("*2\r\n{}{}", bulk(&seconds.to_string()), bulk(&now.subsec_micros().to_string()))
        }
        ("CLUSTER", _) if words[1] == "INFO" => bulk(says.cluster),
        // A node that does not know its own name.
        ("CLUSTER", _) => format!("*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$0\r\n\r\n:{port}\r\n"),
        ("PING", _) => "+PONG\r\n".to_owned(),
        // The library then gives up: it is not what is tested here.
        ("HELLO" | "EVAL" | "EVALSHA", _) => format!("-ERR unknown command '{}'\r\n", words[0]),
        _ => "+OK\r\n".to_owned(),
    }
}

const HEALTHY: [(&str, &str); 14] = [
    ("redis_version", "7.2.4"),
    ("redis_mode", "standalone"),
    ("run_id", "0123456789abcdef0123456789abcdef01234567"),
    ("role", "master"),
    ("connected_slaves", "0"),
    ("master_repl_offset", "0"),
    ("maxmemory", "100000000"),
    ("maxmemory_policy", "noeviction"),
    ("used_memory", "1000000"),
    ("aof_enabled", "1"),
    ("aof_last_write_status", "ok"),
    ("rdb_last_bgsave_status", "ok"),
    ("connected_clients", "5"),
    ("maxclients", "100"),
];

const SETTINGS: [(&str, &str); 3] =
    [("appendfsync", "always"), ("save", "3600 1"), ("stop-writes-on-bgsave-error", "yes")];
