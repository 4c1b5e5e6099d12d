use std::{
    io::{self, IsTerminal, Write},
    time::{Duration, Instant},
};

use lock_core::{Holder, KeyInfo};

use crate::{
    args::{Release, Server},
    describe::{self, quoted},
    exit::{CONFIG, Failure, NO, OS_ERROR, USAGE, written},
};

/// Releases a key by force, after saying who has it.
pub(crate) async fn release(server: &Server, args: Release) -> Result<i32, Failure> {
    let key = quoted(&args.key);
    if !args.yes && !io::stdin().is_terminal() {
        return Err(Failure::new(
            USAGE,
            format!(
                "could not release {key}: there is no terminal to confirm on; look with `lockctl who`, then add --yes"
            ),
        ));
    }
    let manager = server.connect().await?;
    let info = manager.inspect(&args.key).await?;
    let shown_at = Instant::now();
    let mut output = io::stdout().lock();
    let described = output.write_all(describe::key(&info).as_bytes()).and_then(|()| output.flush());
    if !info.is_locked() {
        written(described)?;
        return Ok(NO);
    }
    if let (false, Err(error)) = (args.yes, described) {
        // With --yes nobody has to read it, and the key is released all the same.
        return Err(unseen(&key, &error));
    }
    if info.is_foreign() && !args.foreign {
        return Err(Failure::new(
            CONFIG,
            format!("could not release {key}: another library holds it; stop its holder, or add --foreign"),
        ));
    }
    if !args.yes && !confirmed(&mut output, &info).await.map_err(|error| unseen(&key, &error))? {
        written(writeln!(output, "Nothing was released."))?;
        return Ok(NO);
    }
    // The operator may have taken minutes to read.
    if !args.yes && !is_still(&info, &manager.inspect(&args.key).await?, shown_at.elapsed()) {
        written(writeln!(output, "{key} may have another holder by now, so nothing was released; look again."))?;
        return Ok(NO);
    }
    if !manager.force_release(&args.key).await? {
        written(writeln!(output, "{key} has become free meanwhile; nothing was released."))?;
        return Ok(NO);
    }
    // It is done, whoever reads of it.
    let _ = writeln!(output, "{key} was released. {}", until_noticed(&info));
    Ok(0)
}

/// The operator cannot have read what is to be confirmed. A broken pipe is a failure here, since nothing was released.
fn unseen(key: &str, error: &io::Error) -> Failure {
    Failure::new(
        OS_ERROR,
        format!("could not release {key}: its confirmation failed: {error}; use a terminal, or add --yes"),
    )
}

async fn confirmed(output: &mut impl Write, info: &KeyInfo) -> io::Result<bool> {
    write!(output, "{}\nRelease it? [y/N] ", until_noticed(info))?;
    output.flush()?;
    // Meanwhile this process answers who it is, like any other.
    let answer = tokio::task::spawn_blocking(|| {
        let mut answer = String::new();
        io::stdin().read_line(&mut answer).map(|_| answer)
    });
    Ok(matches!(answer.await??.trim(), "y" | "Y" | "yes"))
}

/// Returns whether a key has the holders that were shown some time ago, or is free. A holder that did not answer cannot be told from
/// another, nor can two clients of another library whose locks end at the same time.
fn is_still(shown: &KeyInfo, now: &KeyInfo, ago: Duration) -> bool {
    let ends_alike = match (shown.remaining(), now.remaining()) {
        (Some(shown), Some(now)) => shown.abs_diff(now + ago) <= A_SECOND,
        (shown, now) => shown == now,
    };
    // Those who share a key may have one fencing token in common.
    let leases = |info: &KeyInfo| {
        let lease = |holder: &Holder| (holder.fencing_token(), holder.party().clone());
        let mut leases: Vec<_> = info.holders().iter().map(lease).collect();
        leases.sort_unstable();
        // Those that did not answer count, too.
        (info.leases(), leases)
    };
    let is_alike = (leases(shown), shown.is_foreign()) == (leases(now), now.is_foreign());
    !now.is_locked() || is_alike && (ends_alike || !now.is_foreign())
}

/// How exactly the ends of two locks are compared.
const A_SECOND: Duration = Duration::from_secs(1);

/// Says what a release by force may do.
fn until_noticed(info: &KeyInfo) -> &'static str {
    match info.leases() {
        0 | 1 => "Until its old holder notices, two may rely on the key.",
        _ => "All its leases end. Until their holders notice, they and the next holders may work at the same time.",
    }
}
