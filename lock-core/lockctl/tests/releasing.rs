//! `lockctl release`.

use std::{
    io::{BufRead, BufReader},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
};

use crate::support::{LONG, LOOKS, Run, Server, UNLESS_STOPPED, UNTIL_TOLD, eventually, lockctl};

#[test]
fn a_key_that_is_released_is_free_and_the_command_of_its_holder_stopped() {
    let server = Server::start();
    let released = (0..LOOKS).find_map(|_| {
        let holder = server.run(&["k", "--ttl=15s"], UNLESS_STOPPED);
        let done = server.done(&["release", "k", "--yes"]);
        assert_eq!((done.code, done.err.as_str()), (Some(0), ""));
        let holder = holder.done();
        assert_eq!((holder.code, holder.out.as_str()), (Some(79), ""), "{holder:?}");
        // Else the holder did not answer in time.
        done.out.starts_with("\"k\" is held by lockctl on ").then_some(done.out)
    });
    let released = released.expect("the holder answers");
    let last = released.lines().nth(2);
    assert_eq!(last, Some("\"k\" was released. Until its old holder notices, two may rely on the key."), "{released}");
    let again = server.done(&["release", "k", "--yes"]);
    assert_eq!((again.code, again.out.as_str()), (Some(1), "\"k\" is free.\n"));
}

#[test]
fn nothing_is_released_without_a_terminal_or_yes() {
    let server = Server::start();
    let mut holder = server.run(&["k", LONG], UNLESS_STOPPED);
    let done = server.done(&["release", "k"]);
    assert_eq!((done.code, done.out.as_str()), (Some(64), ""));
    assert!(
        done.err.contains("could not release \"k\": there is no terminal") && done.err.contains("--yes"),
        "{done:?}"
    );
    holder.say("go");
    assert_eq!(holder.done().out, "not stopped\n");
}

#[test]
fn a_lock_of_another_library_is_released_only_if_that_is_said() {
    let server = Server::start();
    let _: String = server.call(&["SET", "k", "theirs"]);
    let done = server.done(&["release", "k", "--yes"]);
    assert_eq!(done.code, Some(78));
    assert!(done.err.contains("another library holds it") && done.err.contains("--foreign"), "{done:?}");
    assert!(server.is_locked("k"));
    assert_eq!(server.done(&["release", "k", "--yes", "--foreign"]).code, Some(0));
    assert!(!server.is_locked("k"));
}

#[test]
fn a_release_that_nobody_reads_of_is_done_all_the_same() {
    let server = Server::start();
    let holder = server.run(&["k", "--ttl=15s"], UNLESS_STOPPED);
    let done = server.done_unread(&["release", "k", "--yes"]);
    assert_eq!((done.code, done.err.as_str()), (Some(0), ""));
    assert!(!server.is_locked("k"));
    assert_eq!(holder.done().code, Some(79));
    let again = server.done_unread(&["release", "k", "--yes"]);
    assert_eq!((again.code, again.err.as_str()), (Some(1), ""), "it is free by now");
    let _: String = server.call(&["SET", "k", "theirs"]);
    assert_eq!(server.done_unread(&["release", "k", "--yes"]).code, Some(78), "another library holds it");
}

/// Forwards connections to a server until the way is cut, and counts those that are open. Returns the port.
async fn way(server: String, is_cut: Arc<AtomicBool>, goes: Arc<AtomicUsize>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(async move {
        while let Ok((mut here, _)) = listener.accept().await {
            let (server, is_cut, goes) = (server.clone(), Arc::clone(&is_cut), Arc::clone(&goes));
            tokio::spawn(async move {
                goes.fetch_add(1, Ordering::SeqCst);
                if let Ok(mut there) = TcpStream::connect(server).await {
                    let until_cut = async {
                        while !is_cut.load(Ordering::SeqCst) {
                            tokio::time::sleep(Duration::from_millis(1)).await;
                        }
                    };
                    tokio::select! {
                        _ = copy_bidirectional(&mut here, &mut there) => {}
                        () = until_cut => {}
                    }
                }
                drop(here);
                goes.fetch_sub(1, Ordering::SeqCst);
            });
        }
    });
    port
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_that_keeps_the_key_is_repeated_for_as_long_as_the_lease_lasts() {
    const LIMIT: Duration = Duration::from_secs(5);
    let (server, is_cut) = (Server::start(), Arc::new(AtomicBool::new(false)));
    let goes = Arc::new(AtomicUsize::new(0));
    let port = way(server.address().to_owned(), Arc::clone(&is_cut), Arc::clone(&goes)).await;
    let mut command = lockctl(&format!("redis://127.0.0.1:{port}"), &["run", "k", "--ttl=10m", "--at-least=1h"]);
    command.args(["--", "sh", "-c", UNTIL_TOLD]).env("LOCK_COMMAND_TIMEOUT", "5s");
    let mut run = Run::start(command);
    assert_eq!(run.line(), "ready");
    is_cut.store(true, Ordering::SeqCst);
    eventually("the way is cut", || goes.load(Ordering::SeqCst) == 0);
    run.say("go");
    let mut errors = BufReader::new(run.child.stderr.take().expect("piped"));
    let mut said = String::new();
    errors.read_line(&mut said).expect("text");
    assert!(said.contains("could not release \"k\""), "{said:?}");
    // Longer than the clean-up of a manager that is shut down.
    tokio::time::sleep(LIMIT * 3).await;
    is_cut.store(false, Ordering::SeqCst);
    assert_eq!(run.end().code(), Some(0));
    let left: i64 = server.call(&["PTTL", "k"]);
    assert!(left > 1_800_000, "{left} ms are left of an hour");
}
