//! The length limit of functions. Longer ones are listed with their lengths, and may only become
//! shorter.

use super::rust_text::RustText;
use super::{Fault, Tree};

/// Lines of a function, from the line of its `fn` to the line of its closing brace: one screen.
const LINES_MAX: usize = 70;

/// The list: `path function lines` in each row.
pub const ALLOWED_PATH: &str = "xtask/src/tidy/long_functions.txt";

/// Checks every Rust file against the list.
pub fn check(tree: &Tree, allowed: &str) -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut rows: Vec<(&str, &str, usize)> = allowed.lines().filter_map(row).collect();
    for (path, text) in tree.iter().filter(|(path, _)| path.ends_with(".rs")) {
        for function in functions(text) {
            if function.lines <= LINES_MAX {
                continue;
            }
            let listed = rows.iter().position(|(p, n, _)| *p == path && *n == function.name);
            let lines_max = listed.map_or(LINES_MAX, |index| rows.remove(index).2);
            let Function { name, line, lines } = function;
            if lines > lines_max {
                let message = format!("fn {name} has {lines} lines; at most {lines_max}");
                faults.push(Fault::new(path, line, message));
            } else if lines < lines_max {
                let message = format!("fn {name} is listed with {lines_max} lines: now {lines}");
                faults.push(Fault::new(ALLOWED_PATH, 0, message));
            }
        }
    }
    for (path, name, _) in rows {
        let message =
            format!("{path} fn {name} is not longer than {LINES_MAX} lines: remove the row");
        faults.push(Fault::new(ALLOWED_PATH, 0, message));
    }
    faults
}

fn row(line: &str) -> Option<(&str, &str, usize)> {
    let mut words = line.split_whitespace();
    let path = words.next()?;
    let name = words.next()?;
    let lines = words.next()?;
    Some((path, name, lines.parse().ok()?))
}

struct Function {
    name: String,
    line: usize,
    lines: usize,
}

/// Returns every function with a body, including nested ones.
fn functions(text: &str) -> Vec<Function> {
    let code = RustText::new(text).code;
    let mut functions = Vec::new();
    for (at, _) in code.match_indices("fn ") {
        let starts_word = code[..at].chars().next_back().is_none_or(|c| !is_word(c));
        let name: String =
            code[at + 3..].trim_start().chars().take_while(|c| is_word(*c)).collect();
        if !starts_word || name.is_empty() {
            continue;
        }
        if let Some(length) = body_end(&code[at..]) {
            let line = code[..at].matches('\n').count() + 1;
            let lines = code[at..at + length].matches('\n').count() + 1;
            functions.push(Function { name, line, lines });
        }
    }
    functions
}

fn is_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

/// Returns the bytes from a `fn` to the end of its body; `None` for a declaration without a body.
fn body_end(code: &str) -> Option<usize> {
    let mut braces = 0_u32;
    // A semicolon within brackets is an array's length, as in `fn f(a: [u8; 4])`.
    let mut brackets = 0_u32;
    for (at, character) in code.char_indices() {
        match character {
            '(' | '[' => brackets += 1,
            ')' | ']' => brackets = brackets.checked_sub(1)?,
            ';' if braces == 0 && brackets == 0 => return None,
            '{' => braces += 1,
            '}' => {
                braces = braces.checked_sub(1)?;
                if braces == 0 && brackets == 0 {
                    return Some(at + 1);
                }
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(text: &str, allowed: &str) -> Vec<String> {
        let tree = Tree::from([("a.rs".to_owned(), text.to_owned())]);
        check(&tree, allowed).iter().map(ToString::to_string).collect()
    }

    fn function_of(lines: usize) -> String {
        format!(
            "//! A.\npub fn long(a: [u8; 4]) {{\n{}}}\n",
            "    f('{', \"}\");\n".repeat(lines - 2)
        )
    }

    #[test]
    fn seventy_lines_are_the_most() {
        assert_eq!(messages(&function_of(70), ""), [""; 0]);
        assert_eq!(messages(&function_of(71), ""), ["a.rs:2: fn long has 71 lines; at most 70"]);
    }

    #[test]
    fn a_listed_function_may_only_get_shorter() {
        let list = "a.rs long 80\n";
        assert_eq!(messages(&function_of(80), list), [""; 0]);
        assert_eq!(messages(&function_of(81), list), ["a.rs:2: fn long has 81 lines; at most 80"]);
        let shorter = format!("{ALLOWED_PATH}: fn long is listed with 80 lines: now 79");
        assert_eq!(messages(&function_of(79), list), [shorter]);
        let done =
            format!("{ALLOWED_PATH}: a.rs fn long is not longer than 70 lines: remove the row");
        assert_eq!(messages(&function_of(70), list), [done]);
    }

    #[test]
    fn declarations_and_pointers_have_no_length() {
        let text = "trait A { fn a(&self) -> [u8; 4]; fn b(&self) {} }\ntype B = fn (u8);\n";
        let names: Vec<String> = functions(text).into_iter().map(|f| f.name).collect();
        assert_eq!(names, ["b"]);
    }
}
