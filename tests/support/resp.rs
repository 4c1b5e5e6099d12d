//! A Redis client of a hundred lines, to look at a server without the client under test.

use std::io::{self, Error, ErrorKind};

use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
};

/// One answer of a server, in the older of its two protocols.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// `OK` and its like.
    Status(String),
    /// A refusal, with its code in front: `WRONGTYPE Operation against …`.
    Error(String),
    /// A number.
    Integer(i64),
    /// A value.
    Bulk(Vec<u8>),
    /// Nothing there.
    Nil,
    /// Several answers in one.
    Array(Vec<Self>),
}

impl Reply {
    /// The text of a value or status, lossy where it is no UTF-8; `None` for everything else.
    pub fn text(&self) -> Option<String> {
        match self {
            Self::Status(text) => Some(text.clone()),
            Self::Bulk(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
            _ => None,
        }
    }

    /// The number, of an integer reply only.
    pub fn integer(&self) -> Option<i64> {
        match self {
            Self::Integer(number) => Some(*number),
            _ => None,
        }
    }

    /// The parts of an array; none for everything else.
    pub fn items(&self) -> &[Self] {
        match self {
            Self::Array(items) => items,
            _ => &[],
        }
    }

    /// The text that follows `name` in an array of names and values.
    pub fn field(&self, name: &str) -> Option<String> {
        let mut fields = self.items().chunks(2);
        fields.find(|field| field[0].text().as_deref() == Some(name))?.get(1)?.text()
    }

    /// Whether nothing was there.
    pub fn is_nil(&self) -> bool {
        *self == Self::Nil
    }
}

/// One connection, one command at a time.
#[derive(Debug)]
pub struct RawClient {
    stream: BufReader<TcpStream>,
}

impl RawClient {
    /// Connects to `host:port`.
    ///
    /// # Errors
    /// Those of the connection.
    pub async fn tcp(address: &str) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    /// Sends one command and reads its answer. A refusal by the server is an answer, [`Reply::Error`].
    ///
    /// # Errors
    /// Those of the connection; `InvalidData` for what is no reply.
    pub async fn call(&mut self, command: &[&str]) -> io::Result<Reply> {
        self.send(command).await?;
        self.read().await
    }

    /// Sends one command and leaves its answer for [`read`](Self::read).
    ///
    /// # Errors
    /// Those of the connection.
    pub async fn send(&mut self, command: &[&str]) -> io::Result<()> {
        let mut request = format!("*{}\r\n", command.len());
        for part in command {
            request.push_str(&format!("${}\r\n{part}\r\n", part.len()));
        }
        self.stream.write_all(request.as_bytes()).await?;
        self.stream.flush().await
    }

    /// Reads one answer, or one message of a subscription.
    ///
    /// # Errors
    /// Those of the connection; `InvalidData` for what is no reply.
    pub async fn read(&mut self) -> io::Result<Reply> {
        let mut line = String::new();
        self.stream.read_line(&mut line).await?;
        let line = line.strip_suffix("\r\n").ok_or(ErrorKind::UnexpectedEof)?;
        let (Some(mark), Some(rest)) = (line.get(..1), line.get(1..)) else {
            return Err(not_a_reply(line));
        };
        let number = || rest.parse::<i64>().map_err(|_| not_a_reply(line));
        Ok(match mark {
            "+" => Reply::Status(rest.to_owned()),
            "-" => Reply::Error(rest.to_owned()),
            ":" => Reply::Integer(number()?),
            "$" | "*" if rest == "-1" => Reply::Nil,
            "$" => {
                let length = usize::try_from(number()?).map_err(|_| not_a_reply(line))?;
                let mut bytes = vec![0; length + 2];
                self.stream.read_exact(&mut bytes).await?;
                bytes.truncate(length);
                Reply::Bulk(bytes)
            }
            "*" => {
                let mut items = Vec::new();
                for _ in 0..number()? {
                    items.push(Box::pin(self.read()).await?);
                }
                Reply::Array(items)
            }
            _ => return Err(not_a_reply(line)),
        })
    }
}

fn not_a_reply(line: &str) -> Error {
    Error::new(ErrorKind::InvalidData, format!("not a reply: {line:?}"))
}
