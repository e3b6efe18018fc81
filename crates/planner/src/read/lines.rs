//! Reads the lines of a text, one at a time. A text without line ends is an error, so that it does
//! not fill the memory.

use std::io::BufRead;

use super::Broken;

/// Maximum length of a line, in bytes.
pub const LINE_BYTES_MAX: usize = 64 << 10;

/// The lines of a text, with their numbers.
pub(crate) struct Lines<'a> {
    input: &'a mut dyn BufRead,
    bytes: Vec<u8>,
    text: String,
    number: u64,
}

impl<'a> Lines<'a> {
    pub fn new(input: &'a mut dyn BufRead) -> Self {
        Self { input, bytes: Vec::new(), text: String::new(), number: 0 }
    }

    /// Returns the next line without its end, and its number from 1 on; `None` after the last one.
    pub fn next(&mut self) -> Result<Option<(u64, &str)>, Broken> {
        if !self.fill()? {
            return Ok(None);
        }
        let bytes = self.bytes.strip_suffix(b"\r").unwrap_or(&self.bytes);
        self.text.clear();
        // Names of programs and devices may have any encoding. The rest of the line is ASCII.
        push_plain(&mut self.text, &String::from_utf8_lossy(bytes));
        Ok(Some((self.number, &self.text)))
    }

    /// Reads up to the next line end. Returns whether there was anything.
    fn fill(&mut self) -> Result<bool, Broken> {
        self.bytes.clear();
        self.number += 1;
        loop {
            let buffer = match self.input.fill_buf() {
                Ok(buffer) => buffer,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(unreadable(self.number, &error)),
            };
            if buffer.is_empty() {
                return Ok(!self.bytes.is_empty());
            }
            let end = buffer.iter().position(|byte| *byte == b'\n');
            let taken = end.unwrap_or(buffer.len());
            if self.bytes.len() + taken > LINE_BYTES_MAX {
                let found = String::from_utf8_lossy(&self.bytes);
                let found = if found.is_empty() { "a long line".into() } else { found };
                let expected = format!(
                    "a line of at most {} KiB; is this the right file, with line ends?",
                    LINE_BYTES_MAX >> 10
                );
                return Err(Broken::at(self.number, &found, expected));
            }
            self.bytes.extend(buffer.iter().take(taken));
            self.input.consume(taken + usize::from(end.is_some()));
            if end.is_some() {
                return Ok(true);
            }
        }
    }
}

/// Appends a text without the sequences that set the colours of a terminal, as sysstat prints them
/// with `S_COLORS=always`: ESC, `[`, parameters, and a letter.
pub(crate) fn push_plain(into: &mut String, text: &str) {
    let mut parts = text.split('\u{1b}');
    into.push_str(parts.next().unwrap_or_default());
    for part in parts {
        let is_parameter = |c: char| c.is_ascii_digit() || c == ';';
        let end = part.strip_prefix('[').map(|rest| rest.trim_start_matches(is_parameter));
        let end = end.and_then(|rest| rest.strip_prefix(|c: char| c.is_ascii_alphabetic()));
        into.push_str(end.unwrap_or(part));
    }
}

/// Skips the byte order mark with which some programs begin a text in UTF-8. Every reader of
/// another program's text calls it first.
///
/// # Errors
/// Returns [`Broken`] if the text is in UTF-16, or cannot be read.
pub fn skip_mark(input: &mut dyn BufRead) -> Result<(), Broken> {
    while let Err(error) = input.fill_buf() {
        if error.kind() != std::io::ErrorKind::Interrupted {
            return Err(unreadable(1, &error));
        }
    }
    let head = input.fill_buf().map_err(|error| unreadable(1, &error))?;
    if head.starts_with(&[0xfe, 0xff]) || head.starts_with(&[0xff, 0xfe]) {
        let expected = "UTF-8: the text is in UTF-16, as PowerShell writes it; save it as UTF-8";
        return Err(Broken::at(1, "a text in UTF-16", expected));
    }
    if head.starts_with(b"\xef\xbb\xbf") {
        input.consume(3);
    }
    Ok(())
}

/// Returns an error if two titles of columns have the same meaning, by `meaning`: one of the
/// columns would be ignored. Titles without a meaning may be repeated.
pub(crate) fn refuse_twice<T: PartialEq>(
    line: u64,
    titles: &[String],
    meaning: impl Fn(&str) -> Option<T>,
) -> Result<(), Broken> {
    let mut before: Vec<(T, &str)> = Vec::new();
    for title in titles {
        let Some(this) = meaning(title) else { continue };
        if let Some((_, first)) = before.iter().find(|(other, _)| *other == this) {
            let expected = if first.trim() == title.trim() {
                "this column once in the header".to_owned()
            } else {
                format!("one of this column and {:?}, which says the same", first.trim())
            };
            return Err(Broken::at(line, title, expected));
        }
        before.push((this, title));
    }
    Ok(())
}

/// Returns the error of a text that cannot be read.
pub(crate) fn unreadable(line: u64, error: &std::io::Error) -> Broken {
    Broken::at(line, &error.to_string(), "a text that can be read to its end")
}

/// Returns the cells of a row of a table, and whether its quotes are closed. Quotes may contain
/// separators, and two quotes are one. A quote within an unquoted cell is a character.
pub(crate) fn cells(line: &str, separator: char) -> (Vec<String>, bool) {
    let (mut all, mut cell, mut is_quoted) = (Vec::new(), String::new(), false);
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '"' if is_quoted && chars.peek() == Some(&'"') => {
                chars.next();
                cell.push('"');
            }
            '"' if is_quoted || cell.trim().is_empty() => is_quoted = !is_quoted,
            _ if c == separator && !is_quoted => all.push(std::mem::take(&mut cell)),
            _ => cell.push(c),
        }
    }
    all.push(cell);
    (all, !is_quoted)
}

/// Returns the first byte that is not a space, and leaves it in the input.
pub(crate) fn first_byte(input: &mut dyn BufRead) -> Result<Option<u8>, Broken> {
    loop {
        let buffer = input.fill_buf().map_err(|error| {
            Broken::whole(&error.to_string(), "a file that can be read to its end")
        })?;
        if buffer.is_empty() {
            return Ok(None);
        }
        let skipped = buffer.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        // Lines are counted from the first on, so only spaces within a line are skipped.
        match buffer.get(skipped) {
            Some(byte) => return Ok(Some(*byte)),
            None => {
                let length = buffer.len();
                input.consume(length);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end_as_they_do_on_any_system() {
        let mut text = "\u{feff}one\r\ntwo\n\nlast".as_bytes();
        skip_mark(&mut text).unwrap();
        let mut lines = Lines::new(&mut text);
        for expected in [(1, "one"), (2, "two"), (3, ""), (4, "last")] {
            assert_eq!(lines.next().unwrap(), Some(expected));
        }
        assert_eq!(lines.next().unwrap(), None);
    }

    #[test]
    fn colours_of_terminals_are_removed() {
        let mut plain = String::new();
        push_plain(&mut plain, "\u{1b}[32;22mvda   \u{1b}[0m\u{1b}[34;1m  6.00\u{1b}[0m");
        assert_eq!(plain, "vda     6.00");
        plain.clear();
        push_plain(&mut plain, "a\u{1b}b\u{1b}[3");
        assert_eq!(plain, "ab[3");
    }

    #[test]
    fn a_text_in_utf_16_is_refused_by_name() {
        for mark in [[0xfe, 0xff], [0xff, 0xfe]] {
            let broken = skip_mark(&mut &mark[..]).unwrap_err();
            assert!(broken.to_string().contains("in UTF-16, as PowerShell writes it"), "{broken}");
        }
    }

    #[test]
    fn columns_that_say_the_same_are_refused() {
        let titles = |text: &str| cells(text, ',').0;
        let known = |title: &str| {
            ["iops", "size", "gib"].iter().position(|it| *it == title.trim()).map(|at| at.min(1))
        };
        assert_eq!(refuse_twice(1, &titles("iops,gib,note,note"), known), Ok(()));
        let broken = refuse_twice(3, &titles("iops,note, iops"), known).unwrap_err();
        let message = "line 3: \"iops\": expected this column once in the header";
        assert_eq!(broken.to_string(), message);
        let broken = refuse_twice(3, &titles("size,gib"), known).unwrap_err();
        let message =
            "line 3: \"gib\": expected one of this column and \"size\", which says the same";
        assert_eq!(broken.to_string(), message);
    }

    #[test]
    fn a_text_without_line_ends_is_refused_before_it_fills_the_memory() {
        let mut text = std::io::BufReader::new(std::io::repeat(b'x'));
        let broken = Lines::new(&mut text).next().unwrap_err();
        assert_eq!(broken.line, Some(1));
        assert!(broken.expected.starts_with("a line of at most 64 KiB"), "{broken}");
    }
}
