//! Price books of one's own hardware: reads the file, and the calibration records that it names.

use evenkeel_client::output::{Exit, Failure};
use evenkeel_core::qos::admission::DeviceFloor;
use evenkeel_planner::price_book::{BOOK_BYTES_MAX, PriceBook};
use evenkeel_server::calibration::record::Record;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Reads a price book. Paths in it are relative to its own folder.
pub fn load(path: &Path) -> Result<PriceBook, Failure> {
    let mut file = File::open(path).map_err(|error| failed(path, &error.to_string()))?;
    read(path, &mut file)
}

/// Reads a price book from a file that is open, which may be a pipe. `path` is its name.
pub fn read(path: &Path, input: &mut dyn Read) -> Result<PriceBook, Failure> {
    let failed = |why: String| failed(path, &why);
    let mut text = String::new();
    let read = input.take(BOOK_BYTES_MAX + 1).read_to_string(&mut text);
    let bytes = read.map_err(|error| failed(error.to_string()))?;
    if bytes as u64 > BOOK_BYTES_MAX {
        let message = format!("more than {BOOK_BYTES_MAX} bytes: a price book has a few hundred");
        return Err(failed(message));
    }
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut calibrated = |record: &str| floor(&folder.join(record));
    PriceBook::read(&text, &mut calibrated).map_err(|error| failed(error.to_string()))
}

fn failed(path: &Path, why: &str) -> Failure {
    Failure::new(format!("{}: {why}", path.display()))
        .exit(Exit::Input)
        .hint("docs/operating/capacity.md describes price books")
}

fn floor(path: &Path) -> Result<DeviceFloor, String> {
    match Record::load(path) {
        Ok(Some(record)) => Ok(record.sold_floor()),
        Ok(None) => Err(format!("{}: there is no such calibration record", path.display())),
        Err(failure) => Err(failure.message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(text: &str) -> Result<PriceBook, Failure> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("book.toml");
        std::fs::write(&path, text).unwrap();
        load(&path)
    }

    /// The example of the reference is a book that is read, and says what the page says of it.
    #[test]
    fn the_example_of_the_reference_is_read() {
        let page = include_str!("../docs/operating/capacity.md");
        let example = page.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next());
        let book = written(example.unwrap()).unwrap();
        assert_eq!((book.currency(), book.monthly().total()), ("EUR", 619_440_000));
        for amount in ["511.68", "107.76", "63.96", "619.44"] {
            assert!(page.contains(amount), "{amount}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let missing = load(Path::new("/nowhere/book.toml")).unwrap_err();
        assert!(missing.message.starts_with("/nowhere/book.toml: No such file"), "{missing}");
        let broken = written("currency = 3").unwrap_err();
        assert!(
            broken.message.ends_with(
                "line 1: currency = 3 in the price book: expected a text \
             in quotes"
            ),
            "{broken}"
        );
        let record = "currency = \"EUR\"\nkwh = 0\n[[device]]\nname = \"a\"\nnumber = 1\n\
            price = 1\nyears = 1\nwatts = 1\ncapacity_gib = 1\ncalibration = \"c.json\"\n";
        let failure = written(record).unwrap_err();
        assert!(failure.message.ends_with("c.json: there is no such calibration record"));
        let large = written(&"#\n".repeat(1 << 20)).unwrap_err();
        assert!(large.message.contains("more than 1048576 bytes"), "{large}");
    }
}
