//! Instances as processes of their own: the example starts itself once more for each.
//!
//! A child is told its [`Job`] in a line of JSON on its standard input, answers that it is ready, begins at the
//! line `go`, so that all begin together, and prints a line of JSON for every order.

use std::io::BufRead as _;
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::mpsc::{self, UnboundedSender};
use tokio::task::JoinSet;

use crate::instance::{Instance, Job, Receipt};
use crate::report;

/// A line from a child.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Line {
    /// Everything is open; the sale may begin.
    Ready,
    Receipt(Receipt),
    /// Why this instance cannot go on, in a sentence.
    Failed(String),
    /// All buyers were served.
    Done,
}

/// Holds a sale in one process per job.
///
/// # Errors
/// When a process cannot be started, fails, or dies. The others are ended.
pub(crate) async fn sell(jobs: Vec<Job>, receipts: UnboundedSender<Receipt>) -> Result<()> {
    let mut instances = Vec::new();
    for job in &jobs {
        instances.push(Process::start(job).await?);
    }
    for instance in &mut instances {
        instance.ready().await?;
    }
    for instance in &mut instances {
        instance.go().await?;
    }
    let mut sales = JoinSet::new();
    for instance in instances {
        sales.spawn(instance.finish(receipts.clone()));
    }
    while let Some(sale) = sales.join_next().await {
        sale??;
    }
    Ok(())
}

/// Serves as one instance, for a parent in [`sell`].
pub(crate) async fn serve() -> Result<()> {
    let mut parent = Parent::new();
    if let Err(error) = parent.serve().await {
        print(&Line::Failed(report::sentence(&error)))?;
    }
    Ok(())
}

/// A child as the parent sees it; ended when dropped.
#[derive(Debug)]
struct Process {
    number: usize,
    child: Child,
    input: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Process {
    async fn start(job: &Job) -> Result<Self> {
        let program = std::env::current_exe().context("cannot find the program of this example")?;
        let mut child = Command::new(program)
            .arg("--instance")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("cannot start a process for an instance")?;
        let mut input = child.stdin.take().context("the process has no standard input")?;
        let output = child.stdout.take().context("the process has no standard output")?;
        input.write_all(format!("{}\n", serde_json::to_string(job)?).as_bytes()).await?;
        Ok(Self { number: job.instance + 1, child, input, lines: BufReader::new(output).lines() })
    }

    async fn ready(&mut self) -> Result<()> {
        match self.line().await? {
            Line::Ready => Ok(()),
            line => bail!("instance {} said {line:?} before it was asked", self.number),
        }
    }

    async fn go(&mut self) -> Result<()> {
        Ok(self.input.write_all(b"go\n").await?)
    }

    async fn finish(mut self, receipts: UnboundedSender<Receipt>) -> Result<()> {
        loop {
            match self.line().await? {
                Line::Receipt(receipt) => receipts.send(receipt)?,
                Line::Done => break,
                line => bail!("instance {} said {line:?} during the sale", self.number),
            }
        }
        self.child.wait().await?;
        Ok(())
    }

    async fn line(&mut self) -> Result<Line> {
        let Some(line) = self.lines.next_line().await? else {
            bail!("instance {} died: {}", self.number, self.child.wait().await?);
        };
        match serde_json::from_str(&line)? {
            Line::Failed(reason) => bail!("instance {}: {reason}", self.number),
            line => Ok(line),
        }
    }
}

/// The parent as a child sees it: its lines, from a thread, since nothing may wait for standard input at the end.
#[derive(Debug)]
struct Parent {
    lines: mpsc::UnboundedReceiver<String>,
}

impl Parent {
    fn new() -> Self {
        let (send, lines) = mpsc::unbounded_channel();
        std::thread::spawn(move || {
            for line in std::io::stdin().lock().lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    break;
                }
            }
        });
        Self { lines }
    }

    async fn serve(&mut self) -> Result<()> {
        let job = self.lines.recv().await.context("no job came")?;
        let instance = Instance::open(serde_json::from_str(&job).context("the job is not understood")?).await?;
        print(&Line::Ready)?;
        self.lines.recv().await.context("the parent went away")?;

        let (send, mut receipts) = mpsc::unbounded_channel();
        let sale = tokio::spawn(instance.sell(send));
        loop {
            tokio::select! {
                receipt = receipts.recv() => match receipt {
                    Some(receipt) => print(&Line::Receipt(receipt))?,
                    None => break,
                },
                None = self.lines.recv() => bail!("the parent went away"),
            }
        }
        sale.await??;
        print(&Line::Done)
    }
}

fn print(line: &Line) -> Result<()> {
    use std::io::Write as _;
    let line = serde_json::to_string(line)?;
    Ok(writeln!(std::io::stdout(), "{line}")?)
}
