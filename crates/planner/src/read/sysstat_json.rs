//! Reads the JSON of sysstat a report at a time: of iostat and of sadf.
//!
//! Some versions print invalid JSON: a comma where no value is (iostat before 12.1.5 with `-y`), a
//! decimal comma (sadf before 11.3), no end (iostat before 12.1.4 if it is interrupted). So commas
//! are corrected, and of a text that was cut, the reports before the cut are read.

use std::fmt;
use std::marker::PhantomData;

use evenkeel_sim::text::line_of;
use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor,
};

use super::Broken;
use super::device::{Field, Rates};
use super::json;

/// The beginning of each text.
const BEGINNING: &[u8] = b"{\"sysstat\"";
/// The way to the reports.
const PATH: [Step; 5] =
    [Step::Key("sysstat"), Step::Key("hosts"), Step::Each, Step::Key("statistics"), Step::Each];

/// A part of a text.
pub(super) enum Part<T> {
    /// The end of a recording.
    End,
    /// A report.
    Report(T),
}

/// The flaws of a text.
#[derive(Default)]
pub(super) struct Flaws {
    /// Whether commas were corrected.
    has_commas: bool,
    /// Number of recordings that end within a report, or before their end.
    cut: u64,
}

impl Flaws {
    /// Returns a remark for each.
    pub fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        if self.has_commas {
            remarks
                .push("invalid commas of the JSON, as sysstat prints some, were corrected".into());
        }
        if self.cut > 0 {
            let remark = format!(
                "the JSON has no end, as if its program was stopped: whole reports are read, what \
                 was begun after them is left out: {}",
                self.cut
            );
            remarks.push(remark);
        }
        remarks
    }
}

/// The keys of a device in the JSON of a program.
pub(super) trait DeviceKeys {
    /// The key of the device's name.
    const NAME: &'static str;
    /// Description of a device in errors.
    const FORM: &'static str;

    /// Returns the quantity of a key; `None` if it is not used.
    fn quantity(key: &str) -> Option<Field>;

    /// Returns an error with the key that is missing.
    fn check(_rates: &Rates) -> Result<(), &'static str> {
        Ok(())
    }
}

/// A device with its columns. The names of columns are many, so they are not kept.
pub(super) struct Device<K> {
    pub name: String,
    pub rates: Rates,
    keys: PhantomData<K>,
}

impl<'de, K: DeviceKeys> Deserialize<'de> for Device<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(DeviceVisitor(PhantomData))
    }
}

struct DeviceVisitor<K>(PhantomData<K>);

impl<'de, K: DeviceKeys> Visitor<'de> for DeviceVisitor<K> {
    type Value = Device<K>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(K::FORM)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Device<K>, A::Error> {
        let mut name = String::new();
        let mut rates = Rates::default();
        while let Some(key) = map.next_key::<String>()? {
            if key == K::NAME {
                name = map.next_value()?;
            } else if let Some(field) = K::quantity(&key) {
                let value: f64 = map.next_value()?;
                if value < 0.0 {
                    return Err(Error::custom(format!("{key} is {value}")));
                }
                rates.set(field, value);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        if name.is_empty() {
            return Err(Error::missing_field(K::NAME));
        }
        K::check(&rates).map_err(Error::missing_field)?;
        Ok(Device { name, rates, keys: PhantomData })
    }
}

/// Reads the reports of one or several texts, one after the other.
///
/// # Errors
/// Returns [`Broken`] if the JSON is invalid before the first report, or if `take` returns it.
pub(super) fn read<T>(
    mut text: Vec<u8>,
    form: &str,
    mut take: impl FnMut(Part<T>) -> Result<(), Broken>,
) -> Result<Flaws, Broken>
where
    T: for<'de> Deserialize<'de>,
{
    let mut flaws = Flaws { has_commas: correct(&mut text), cut: 0 };
    let mut reports = 0_u64;
    let mut from = 0;
    loop {
        let all = text.get(from..).unwrap_or_default();
        let rest = all.trim_ascii_start();
        if rest.is_empty() {
            return Ok(flaws);
        }
        from += all.len() - rest.len();
        // A text that was cut ends where the next one begins.
        let behind = rest.get(1..).unwrap_or_default();
        let next = behind.windows(BEGINNING.len()).position(|window| window == BEGINNING);
        let end = next.map_or(rest.len(), |next| next + 1);
        let rest = rest.get(..end).unwrap_or(rest);
        let mut broken = None;
        let mut deserializer = serde_json::Deserializer::from_slice(rest);
        let mut counted = |part: Part<T>| {
            reports += u64::from(matches!(part, Part::Report(_)));
            take(part)
        };
        let walk =
            Walk::<T, _> { path: &PATH, take: &mut counted, broken: &mut broken, is: PhantomData };
        let result = walk.deserialize(&mut deserializer);
        if let Some(broken) = broken {
            return Err(broken);
        }
        let Err(error) = result else {
            from += deserializer.into_iter::<IgnoredAny>().byte_offset();
            continue;
        };
        if !error.is_eof() || (reports == 0 && next.is_none()) {
            let lines = line_of(&text, from) as u64 - 1;
            let broken = json::broken(&error, form);
            return Err(Broken { line: broken.line.map(|line| line + lines), ..broken });
        }
        flaws.cut += 1;
        take(Part::End)?;
        from += end;
    }
}

/// Corrects commas outside of texts: removes those without a value on both sides, and makes a
/// point of those between two digits. Returns whether there were any.
fn correct(text: &mut [u8]) -> bool {
    let mut is_corrected = false;
    let mut is_in_text = false;
    // The last byte that is not a space, and its place.
    let mut last = (b'[', 0);
    let mut offset = 0;
    while let Some(byte) = text.get(offset).copied() {
        let after = text.get(offset + 1).copied().unwrap_or(b' ');
        let mut change = None;
        match byte {
            b'\\' if is_in_text => offset += 1,
            b'"' => is_in_text = !is_in_text,
            _ if is_in_text => {}
            b',' if last.1 + 1 == offset && last.0.is_ascii_digit() && after.is_ascii_digit() => {
                change = Some((offset, b'.'));
            }
            b',' if matches!(last.0, b'[' | b'{' | b',') => change = Some((offset, b' ')),
            b']' | b'}' if last.0 == b',' => change = Some((last.1, b' ')),
            _ => {}
        }
        let changed = change.and_then(|(place, to)| Some((text.get_mut(place)?, to)));
        if let Some((place, to)) = changed {
            *place = to;
            is_corrected = true;
        }
        match text.get(offset).copied() {
            Some(byte) if !byte.is_ascii_whitespace() => last = (byte, offset),
            _ => {}
        }
        offset += 1;
    }
    is_corrected
}

/// A step into a text.
enum Step {
    /// The value of this key of an object; others are skipped.
    Key(&'static str),
    /// Each element of an array.
    Each,
}

/// A walk to the values at the end of a path.
struct Walk<'a, T, F> {
    path: &'a [Step],
    take: &'a mut F,
    /// The error of `take`.
    broken: &'a mut Option<Broken>,
    is: PhantomData<T>,
}

impl<T, F> Walk<'_, T, F>
where
    F: FnMut(Part<T>) -> Result<(), Broken>,
{
    fn further<'b>(&'b mut self) -> Walk<'b, T, F> {
        let path = self.path.get(1..).unwrap_or_default();
        Walk { path, take: self.take, broken: self.broken, is: PhantomData }
    }

    fn give<E: serde::de::Error>(&mut self, part: Part<T>) -> Result<(), E> {
        (self.take)(part).map_err(|broken| {
            let error = E::custom(&broken);
            *self.broken = Some(broken);
            error
        })
    }
}

impl<'de, T, F> DeserializeSeed<'de> for Walk<'_, T, F>
where
    T: Deserialize<'de>,
    F: FnMut(Part<T>) -> Result<(), Broken>,
{
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(mut self, deserializer: D) -> Result<(), D::Error> {
        match self.path.first() {
            None => {
                let report = T::deserialize(deserializer)?;
                self.give(Part::Report(report))
            }
            Some(Step::Key(_)) => deserializer.deserialize_map(self),
            Some(Step::Each) => deserializer.deserialize_seq(self),
        }
    }
}

impl<'de, T, F> serde::de::Visitor<'de> for Walk<'_, T, F>
where
    T: Deserialize<'de>,
    F: FnMut(Part<T>) -> Result<(), Broken>,
{
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.path.first() {
            Some(Step::Key(key)) => write!(f, "an object with the key {key}"),
            _ => f.write_str("an array"),
        }
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        let Some(Step::Key(key)) = self.path.first() else { return Ok(()) };
        let mut is_found = false;
        while let Some(found) = map.next_key::<String>()? {
            if found == *key {
                is_found = true;
                map.next_value_seed(self.further())?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        is_found.then_some(()).ok_or_else(|| serde::de::Error::missing_field(key))
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut seq: A) -> Result<(), A::Error> {
        while seq.next_element_seed(self.further())?.is_some() {
            // A recording ends where its element does.
            if self.path.len() > 1 {
                self.give(Part::End)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    /// Returns the reports as texts; a recording ends with `|`.
    fn reports(text: &str) -> Result<(String, Vec<String>), Broken> {
        let mut all = String::new();
        let flaws = read::<Value>(text.as_bytes().to_vec(), "the JSON", |part| {
            all.push_str(&match part {
                Part::End => "|".to_owned(),
                Part::Report(report) => format!("{report} "),
            });
            Ok(())
        })?;
        Ok((all, flaws.remarks()))
    }

    const WHOLE: &str = r#"{"sysstat": {"hosts": [{"a": 1, "statistics": [1, 2]}]}}"#;

    #[test]
    fn texts_follow_each_other() {
        assert_eq!(reports(WHOLE), Ok(("1 2 |".to_owned(), Vec::new())));
        let twice = format!("{WHOLE}\n{WHOLE}\n");
        assert_eq!(reports(&twice), Ok(("1 2 |1 2 |".to_owned(), Vec::new())));
    }

    #[test]
    fn a_text_that_was_cut_has_the_reports_before() {
        let cut = &WHOLE[..WHOLE.len() - 6];
        let (all, remarks) = reports(cut).unwrap();
        assert_eq!(all, "1 |");
        assert!(remarks[0].starts_with("the JSON has no end"), "{remarks:?}");
        let (all, remarks) = reports(&format!("{cut}{WHOLE}")).unwrap();
        assert_eq!(all, "1 |1 2 |");
        assert!(remarks[0].ends_with(": 1"), "{remarks:?}");
        let broken = reports("{\"sysstat\":\n{\"hosts\": [{\"statistics\": [").unwrap_err();
        assert_eq!(broken.line, Some(2));
        assert!(reports("{\"sysstat\": 7}").is_err());
        let broken = reports(&format!("{WHOLE}\n{WHOLE}\n7")).unwrap_err();
        assert_eq!(broken.line, Some(3));
    }

    #[test]
    fn invalid_commas_are_corrected() {
        let text = r#"{"sysstat": {"hosts": [{"statistics": [
            , {"a,]": 0,50, "b\",": [1,2]}, ]}]}}"#;
        let (all, remarks) = reports(text).unwrap();
        assert_eq!(all, "{\"a,]\":0.5,\"b\\\",\":[1.2]} |");
        assert_eq!(remarks.len(), 1);
    }
}
