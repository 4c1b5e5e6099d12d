use std::io::{self, Write};

use crate::{
    args::{Server, Who},
    describe,
    exit::{Failure, NO},
    json,
};

/// Writes who holds a key and who waits for it.
pub(crate) async fn who(server: &Server, args: Who) -> Result<i32, Failure> {
    let info = server.connect().await?.inspect(&args.key).await?;
    let mut output = io::stdout().lock();
    if args.json {
        json::write(output, &info)?;
    } else {
        output.write_all(describe::key(&info).as_bytes())?;
        output.flush()?;
    }
    Ok(if info.is_locked() { 0 } else { NO })
}
