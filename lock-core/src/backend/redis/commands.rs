//! Commands as they go over the wire.
//!
//! A command is an array of strings in both versions of the protocol (RESP). Its arguments are appended to one buffer as they come; their
//! number, which stands before them, is put there when the next command begins or the whole is written.

/// Commands that are sent in one write. (Without `Debug`: a password may be among the arguments.)
#[derive(Default)]
pub(super) struct Commands {
    bytes: Vec<u8>,
    count: usize,
    /// Where the arguments of the last command begin, and how many they are.
    last: usize,
    arguments: usize,
}

impl Commands {
    /// Makes room for so many bytes.
    pub(super) fn with_capacity(bytes: usize) -> Self {
        Self { bytes: Vec::with_capacity(bytes), ..Self::default() }
    }

    /// Returns how many commands there are.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Makes one command.
    pub(super) fn one<const N: usize>(words: [&str; N]) -> Self {
        let mut commands = Self::default();
        commands.add(words);
        commands
    }

    /// Begins a command: with its name, and arguments.
    pub(super) fn add<const N: usize>(&mut self, words: [&str; N]) -> &mut Self {
        if self.count > 0 {
            let end = self.bytes.len();
            push_head(&mut self.bytes, b'*', self.arguments);
            let head = self.bytes.len() - end;
            self.bytes[self.last..].rotate_right(head);
        }
        (self.last, self.arguments) = (self.bytes.len(), 0);
        self.count += 1;
        for word in words {
            self.text(word);
        }
        self
    }

    /// Adds an argument.
    pub(super) fn text(&mut self, text: &str) -> &mut Self {
        self.joined([text.as_bytes()])
    }

    /// Adds an argument that consists of several parts.
    pub(super) fn joined<const N: usize>(&mut self, parts: [&[u8]; N]) -> &mut Self {
        push_head(&mut self.bytes, b'$', parts.iter().map(|part| part.len()).sum());
        parts.iter().for_each(|part| self.bytes.extend_from_slice(part));
        self.bytes.extend_from_slice(b"\r\n");
        self.arguments += 1;
        self
    }

    /// Adds a number.
    pub(super) fn number(&mut self, number: impl Into<u64>) -> &mut Self {
        self.joined([digits_of(number.into(), &mut [0; 20])])
    }

    /// Appends the commands to what is to be written.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        if self.count > 0 {
            let (before, last) = self.bytes.split_at(self.last);
            out.extend_from_slice(before);
            push_head(out, b'*', self.arguments);
            out.extend_from_slice(last);
        }
    }
}

fn push_head(bytes: &mut Vec<u8>, kind: u8, count: usize) {
    bytes.push(kind);
    bytes.extend_from_slice(digits_of(count as u64, &mut [0; 20]));
    bytes.extend_from_slice(b"\r\n");
}

/// Writes a number. (About half of what is written for a request are lengths, and formatting them is most of that work.)
fn digits_of(mut number: u64, digits: &mut [u8; 20]) -> &[u8] {
    let mut begin = digits.len();
    loop {
        begin -= 1;
        digits[begin] = b"0123456789"[(number % 10) as usize];
        number /= 10;
        if number == 0 {
            return &digits[begin..];
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    fn written(commands: &Commands) -> Vec<u8> {
        let mut out = Vec::new();
        commands.write(&mut out);
        out
    }

    #[test]
    fn no_commands_are_nothing() {
        assert!(written(&Commands::default()).is_empty());
    }

    proptest! {
        #[test]
        fn commands_are_written_as_the_redis_crate_writes_them(
            given in vec((".{0,9}", vec((".{0,40}", ".{0,3}", any::<u64>()), 0..40)), 1..5),
            shift in 0_u32..64,
        ) {
            let mut commands = Commands::default();
            let mut theirs = Vec::new();
            for (name, arguments) in &given {
                let mut command = redis::cmd(name);
                commands.add([name.as_str()]);
                for (one, two, number) in arguments {
                    commands.joined([one.as_bytes(), two.as_bytes()]).number(number >> shift).text(two);
                    command.arg(format!("{one}{two}")).arg(number >> shift).arg(two);
                }
                command.write_packed_command(&mut theirs);
            }
            prop_assert_eq!(commands.count(), given.len());
            prop_assert_eq!(written(&commands), theirs);
        }
    }
}
