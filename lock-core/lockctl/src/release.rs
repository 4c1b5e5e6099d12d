use std::io::{self, IsTerminal, Write};

use lock_core::{Holder, KeyInfo};

use crate::{
    args::{Release, Server},
    describe::{self, quoted},
    exit::{CONFIG, Failure, NO, USAGE},
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
    let mut output = io::stdout().lock();
    output.write_all(describe::key(&info).as_bytes())?;
    output.flush()?;
    if !info.is_locked() {
        return Ok(NO);
    }
    if info.is_foreign() && !args.foreign {
        return Err(Failure::new(
            CONFIG,
            format!("could not release {key}: another library holds it; stop its holder, or add --foreign"),
        ));
    }
    if !args.yes && !confirmed(&mut output, &info)? {
        writeln!(output, "Nothing was released.")?;
        return Ok(NO);
    }
    // The operator may have taken minutes to read.
    if !args.yes && !is_still(&info, &manager.inspect(&args.key).await?) {
        writeln!(output, "{key} may have another holder by now, so nothing was released; look again.")?;
        return Ok(NO);
    }
    if !manager.force_release(&args.key).await? {
        writeln!(output, "{key} has become free meanwhile; nothing was released.")?;
        return Ok(NO);
    }
    writeln!(output, "{key} was released. {}", until_noticed(&info))?;
    Ok(0)
}

fn confirmed(output: &mut impl Write, info: &KeyInfo) -> io::Result<bool> {
    write!(output, "{}\nRelease it? [y/N] ", until_noticed(info))?;
    output.flush()?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// Returns whether a key has the holders that were shown, or is free. A holder that did not answer cannot be told from another.
fn is_still(shown: &KeyInfo, now: &KeyInfo) -> bool {
    let tokens = |info: &KeyInfo| info.holders().iter().map(Holder::fencing_token).collect::<Vec<_>>();
    !now.is_locked() || (tokens(shown), shown.is_foreign()) == (tokens(now), now.is_foreign())
}

/// Says what a release by force may do.
fn until_noticed(info: &KeyInfo) -> &'static str {
    match info.leases() {
        0 | 1 => "Until its old holder notices, two may rely on the key.",
        _ => "All its leases end. Until their holders notice, they and the next holders may work at the same time.",
    }
}
