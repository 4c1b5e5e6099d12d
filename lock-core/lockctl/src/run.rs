use std::{
    future::Future,
    path::Path,
    time::{Duration, Instant},
};

use lock_core::{Error, LockGuard, LockManager};
use tokio::time::{sleep, timeout};

use crate::{
    args::{Run, Server},
    child::Running,
    describe::{duration, quoted},
    exit::{BUSY, Failure, LOST, OS_ERROR, SIGNALLED, begin_warning, warn},
    signals::Signals,
};

/// Runs a command while a key is held, and returns its exit code.
pub(crate) async fn run(server: &Server, args: Run) -> Result<i32, Failure> {
    let caught = Signals::catch();
    let mut signals = caught.map_err(|error| Failure::new(OS_ERROR, format!("could not catch signals: {error}")))?;
    let manager = match unless_signalled(&mut signals, server.connect()).await {
        Ok(connected) => connected?,
        Err(code) => return Ok(code),
    };
    let acquired = unless_signalled(&mut signals, acquire(&manager, &args)).await;
    let done = match acquired {
        Ok(Ok(guard)) => hold(&manager, guard, &args, &mut signals).await,
        Ok(Err(error)) if error.is_busy() => busy(&args, error),
        Ok(Err(error)) => Err(error.into()),
        Err(code) => Ok(code),
    };
    // A request that was given up may still be on its way out of the queue.
    manager.shutdown(Duration::ZERO).await;
    done
}

/// Waits for a future, or returns the exit code of the signal that came first.
async fn unless_signalled<T>(signals: &mut Signals, future: impl Future<Output = T>) -> Result<T, i32> {
    tokio::select! {
        biased;
        signal = signals.next() => Err(SIGNALLED + signal),
        output = future => Ok(output),
    }
}

/// Acquires the lease.
async fn acquire(manager: &LockManager, args: &Run) -> Result<LockGuard, Error> {
    let program = args.command.first().map(Path::new).and_then(Path::file_name);
    let label = args.label.clone().or_else(|| program.map(|name| name.to_string_lossy().into_owned()));
    // There is one for the whole life of this process.
    let label = label.unwrap_or_default().leak();
    let mut request = manager.lock(&args.key).ttl(args.ttl).at_least(args.at_least).label(label);
    if args.shared {
        request = request.shared();
    } else if let Some(total) = args.permits {
        request = request.permits(total).take(args.take.unwrap_or(1));
    }
    if args.wait_forever {
        request = request.wait_forever();
    } else if args.skip_if_busy {
        request = request.wait(Duration::ZERO);
    } else if let Some(wait) = args.wait {
        request = request.wait(wait);
    }
    request.await
}

fn busy(args: &Run, error: Error) -> Result<i32, Failure> {
    let code = args.busy_code.map_or(if args.skip_if_busy { 0 } else { BUSY }, i32::from);
    // Cron sends a mail of everything that is said.
    if args.skip_if_busy { Ok(code) } else { Err(Failure::new(code, error.to_string())) }
}

/// Runs the command, and releases the lease after it.
async fn hold(manager: &LockManager, mut guard: LockGuard, args: &Run, signals: &mut Signals) -> Result<i32, Failure> {
    let kept_until = Instant::now() + args.at_least;
    let lengthened = unless_signalled(signals, lengthen(&mut guard, args)).await;
    let done = match lengthened {
        Ok(Ok(())) => perform(&guard, args, signals).await,
        Ok(Err(error)) => Err(error.into()),
        Err(code) => Ok(code),
    };
    // A job that failed is not done: another machine, or a retry, may do it.
    let is_done = matches!(done, Ok(0));
    if guard.is_held() {
        let ends = Instant::now() + guard.remaining();
        let release = if is_done { guard.release() } else { guard.release_at_once() };
        if let Err(error) = release.await {
            // The command has ended all the same.
            warn(&error.to_string());
            if is_done && Instant::now() < kept_until {
                if error.is_lost() {
                    warn_not_kept(args);
                } else {
                    let _ = unless_signalled(signals, until_kept(manager, args, kept_until, ends)).await;
                }
            }
        }
    } else if is_done && Instant::now() < kept_until {
        // It was lost after the command had ended.
        warn_not_kept(args);
    }
    done
}

/// Waits until the key is kept for `--at-least`, or the lease has ended. As long as the manager lives, the release is repeated, without which
/// another machine does the work again.
async fn until_kept(manager: &LockManager, args: &Run, kept_until: Instant, ends: Instant) {
    loop {
        // At least once: the release may have been carried out, and its answer have come too late.
        let left = ends.saturating_duration_since(Instant::now()).max(A_SECOND);
        if let Ok(Ok(info)) = timeout(left, manager.inspect(&args.key)).await {
            let is_kept = |left: Duration| left + A_SECOND >= kept_until.saturating_duration_since(Instant::now());
            if info.remaining().is_some_and(is_kept) {
                return;
            }
            if !info.is_locked() {
                break;
            }
        }
        if Instant::now() >= ends {
            break;
        }
        sleep(AGAIN).await;
    }
    if Instant::now() < kept_until {
        warn_not_kept(args);
    }
}

fn warn_not_kept(args: &Run) {
    let key = quoted(&args.key);
    warn(&format!("{key} could not be kept for --at-least; another machine may run the command again"));
}

/// Sees to it that enough of the lease is left to begin: one that was waited for begins with a part of its ttl; see
/// `Lease::remaining`.
async fn lengthen(guard: &mut LockGuard, args: &Run) -> Result<(), Error> {
    if guard.remaining() <= grace(args) {
        guard.extend(args.ttl).await?;
    }
    Ok(())
}

/// Starts the command, and returns its exit code.
async fn perform(guard: &LockGuard, args: &Run, signals: &mut Signals) -> Result<i32, Failure> {
    let token = guard.fencing_token().to_string();
    let environment = [("LOCK_KEY", args.key.clone()), ("LOCK_FENCING_TOKEN", token)];
    let running = Running::start(&args.command, environment, args.kill_after, || spare(guard, args)).await?;
    attend(guard, running, args, signals).await
}

/// Waits for the command, and stops it if its lease is lost or about to be.
async fn attend(guard: &LockGuard, mut running: Running, args: &Run, signals: &mut Signals) -> Result<i32, Failure> {
    let why = loop {
        let left = guard.remaining();
        if guard.is_held() && left <= grace(args) {
            break format!(
                "the lease was not renewed, and ends in {}; check that Redis runs and can be reached",
                duration(left)
            );
        }
        running.may_run_for(|| spare(guard, args)).await;
        tokio::select! {
            biased;
            end = guard.ended() => break end.to_string(),
            code = running.wait() => {
                running.finish().await;
                return code;
            }
            signal = signals.next() => running.pass_on(signal),
            () = sleep(spare(guard, args).min(args.ttl / LOOKS)) => {}
        }
    };
    let warning = begin_warning(&format!("could not keep {}: {why}; stopping the command", quoted(&args.key)));
    running.stop(args.kill_after).await?;
    warning.wait();
    Ok(LOST)
}

/// Returns for how long the command may run if the lease is not renewed.
fn spare(guard: &LockGuard, args: &Run) -> Duration {
    guard.remaining().saturating_sub(grace(args))
}

/// Returns how much of the lease the end of the command may take: it is to be over when another can have the key.
///
/// Renewals begin when two thirds are left. So at least a third is for trying them again.
fn grace(args: &Run) -> Duration {
    args.kill_after.min(args.ttl / 3)
}

/// How exactly a time is compared with that of the server.
const A_SECOND: Duration = Duration::from_secs(1);

/// The pause before the server is asked again.
const AGAIN: Duration = Duration::from_millis(100);

/// How often the lease is looked at within its ttl. A renewal that was answered is seen before the watcher, which knows of
/// the one before, has to stop the command.
const LOOKS: u32 = 6;
