use std::io::{self, Write};

use lock_core::KeyInfo;

use crate::{
    args::{Server, Who},
    describe,
    exit::{Failure, NO, written},
    json,
    terminal::{Look, Paint},
};

/// Writes who holds a key and who waits for it.
pub(crate) async fn who(server: &Server, args: Who) -> Result<i32, Failure> {
    let info = server.connect().await?.inspect(&args.key).await?;
    let output = io::stdout().lock();
    written(if args.json { json::write(output, &info) } else { in_words(output, &info) })?;
    Ok(if info.is_locked() { 0 } else { NO })
}

fn in_words(mut output: impl Write, info: &KeyInfo) -> io::Result<()> {
    let paint = Paint::of_stdout();
    for line in describe::key(info).lines() {
        let is_amber = line.ends_with(describe::WAIT_FOR_IT) || line.contains("did not answer");
        writeln!(output, "{}", if is_amber { paint.paint(Look::Amber, line) } else { line.to_owned() })?;
    }
    output.flush()
}
