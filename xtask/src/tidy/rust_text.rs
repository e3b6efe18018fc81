//! Splits Rust source into code and comments, so that rules apply to one of them. It is no parser:
//! it only finds where strings, characters and comments begin and end.

/// A source text twice, with the same lines and columns. Each copy is blank where the other is not.
#[derive(Debug)]
pub struct RustText {
    /// The text with comments, characters and the contents of strings blanked.
    pub code: String,
    /// The text with everything but comments blanked.
    pub comments: String,
}

/// The kind of text at a position.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Code,
    LineComment,
    /// The depth, as Rust's block comments nest.
    BlockComment(u32),
    Text,
    /// The number of hashes that close it.
    RawText(usize),
}

impl RustText {
    /// Splits `text`.
    pub fn new(text: &str) -> Self {
        let characters: Vec<char> = text.chars().collect();
        let mut split = Self { code: String::new(), comments: String::new() };
        let mut state = State::Code;
        let mut offset = 0;
        while offset < characters.len() {
            let (next, length) = step(state, &characters, offset);
            // The delimiters of a comment belong to it; the quotes of a string belong to the code.
            let is_comment = |s| matches!(s, State::LineComment | State::BlockComment(_));
            let literal = state == State::Code && characters[offset] == '\'' && length > 1;
            for &character in &characters[offset..offset + length] {
                let comment = is_comment(state) || is_comment(next);
                let code = !comment && !literal && (state == State::Code || next == State::Code);
                let or_blank = |keep: bool| if keep || character == '\n' { character } else { ' ' };
                split.code.push(or_blank(code));
                split.comments.push(or_blank(comment));
            }
            state = next;
            offset += length;
        }
        split
    }
}

/// Returns the state after the characters at `at`, and how many of them were read: at least one.
fn step(state: State, characters: &[char], at: usize) -> (State, usize) {
    let starts =
        |text: &str| text.chars().enumerate().all(|(i, c)| characters.get(at + i) == Some(&c));
    match state {
        State::Code if starts("//") => (State::LineComment, 2),
        State::Code if starts("/*") => (State::BlockComment(1), 2),
        State::Code if starts("\"") => (State::Text, 1),
        State::Code if characters[at] == 'r' && !follows_word(characters, at) => {
            match raw_hashes(&characters[at + 1..]) {
                Some(hashes) => (State::RawText(hashes), hashes + 2),
                None => (State::Code, 1),
            }
        }
        State::Code if characters[at] == '\'' => (State::Code, character_length(&characters[at..])),
        State::LineComment if characters[at] == '\n' => (State::Code, 1),
        State::BlockComment(depth) if starts("/*") => (State::BlockComment(depth + 1), 2),
        State::BlockComment(1) if starts("*/") => (State::Code, 2),
        State::BlockComment(depth) if starts("*/") => (State::BlockComment(depth - 1), 2),
        State::Text if starts("\\") => (State::Text, 2.min(characters.len() - at)),
        State::Text if starts("\"") => (State::Code, 1),
        State::RawText(hashes) if starts(&format!("\"{}", "#".repeat(hashes))) => {
            (State::Code, 1 + hashes)
        }
        same => (same, 1),
    }
}

/// Returns whether the character before belongs to a word: then an `r` is the end of an identifier.
/// A `b` or `c` alone is the prefix of a byte or C string.
fn follows_word(characters: &[char], at: usize) -> bool {
    let is_word = |c: &char| c.is_alphanumeric() || *c == '_';
    match &characters[..at] {
        [.., before, 'b' | 'c'] => is_word(before),
        ['b' | 'c'] | [] => false,
        [.., before] => is_word(before),
    }
}

/// Returns the number of hashes between an `r` and its quote; `None` without a quote, as in
/// `r#type`.
fn raw_hashes(characters: &[char]) -> Option<usize> {
    let hashes = characters.iter().take_while(|c| **c == '#').count();
    (characters.get(hashes) == Some(&'"')).then_some(hashes)
}

/// Returns the length of a character literal that starts here, or 1 for the tick of a lifetime.
fn character_length(characters: &[char]) -> usize {
    match characters {
        ['\'', '\\', escaped, rest @ ..] => {
            // The escaped character may itself be the quote.
            let _ = escaped;
            3 + rest.iter().position(|c| *c == '\'').map_or(0, |end| end + 1)
        }
        ['\'', _, '\'', ..] => 3,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> String {
        RustText::new(text).code
    }

    #[test]
    fn comments_and_code_are_distinguished() {
        let split = RustText::new("a(); // b\n/* c /* d */ e */ f();\n");
        assert_eq!(split.code, "a();     \n                  f();\n");
        assert_eq!(split.comments, "     // b\n/* c /* d */ e */     \n");
    }

    #[test]
    fn contents_of_strings_are_neither_comments_nor_code() {
        let split = RustText::new(r#"x("{ // \" }") }"#);
        assert_eq!(split.code, r#"x("         ") }"#);
        assert_eq!(split.comments.trim(), "");
        assert_eq!(code(r##"x(r#"{ " }"#, br"\", r#fn)"##), r##"x(r#"     "#, br" ", r#fn)"##);
        assert_eq!(code("var\"{\""), "var\" \"");
    }

    #[test]
    fn characters_and_lifetimes_are_distinguished() {
        assert_eq!(code("'\"' + '\\'' + '\\u{7d}'"), "    +      +         ");
        assert_eq!(code("&'a str \"{\""), "&'a str \" \"");
    }

    #[test]
    fn text_that_ends_early_ends_the_reading() {
        for text in ["\"", "\"\\", "r#\"", "/*", "'\\", "'", "'\\u{"] {
            assert_eq!(code(text).chars().count(), text.chars().count(), "{text}");
        }
    }
}
