//! Reads and formats layouts as text, such as `2 x gp3 100 GiB, 3000 IOPS, 125 MiB/s`.

use core::fmt;
use evenkeel_core::convert::saturating;

use evenkeel_core::volume::{InvalidSpec, Rules, VolumeRequest, VolumeSpec, VolumeType};

use crate::layout::Layout;
use crate::quantity::{self, Measure, THOUSANDS};

/// Maximum number of volumes of a layout.
pub const VOLUMES_MAX: u32 = 128;
/// Maximum number of characters of a word that an error repeats.
const FOUND_CHARS_MAX: usize = 40;

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let VolumeSpec { volume_type, size_gib, iops, throughput_mibps, multi_attach } = self.each;
        if self.volumes > 1 {
            write!(f, "{} x ", self.volumes)?;
        }
        write!(f, "{volume_type} {size_gib} GiB")?;
        if let Some(iops) = iops {
            write!(f, ", {iops} IOPS")?;
        }
        if let Some(mibps) = throughput_mibps {
            write!(f, ", {mibps} MiB/s")?;
        }
        if multi_attach {
            f.write_str(", Multi-Attach")?;
        }
        Ok(())
    }
}

/// The reason why a text is not a layout.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BadLayout {
    /// A word is invalid at its place; also has what was expected there.
    Word(String, &'static str),
    /// The text ends where more was expected.
    Ends(&'static str),
    /// A property is stated twice.
    Twice(&'static str),
    /// A number that is no quantity, and what was expected.
    Quantity(String, String),
    /// This number of volumes is 0, or too large.
    Volumes(u64),
    /// The type's IOPS follow from its size, and differ from the stated ones.
    Baseline {
        /// The type.
        volume_type: VolumeType,
        /// Its size in GiB.
        size_gib: u32,
        /// The stated IOPS.
        named: u32,
        /// The IOPS of the volume.
        has: u32,
    },
    /// The rules in force do not allow such a volume.
    Rules(InvalidSpec),
}

impl fmt::Display for BadLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Word(found, expected) => write!(f, "{found:?}: expected {expected}"),
            Self::Quantity(found, expected) => write!(f, "{found:?}: expected {expected}"),
            Self::Ends(expected) => write!(f, "it ends where {expected} is expected"),
            Self::Twice(what) => write!(f, "{what} is named twice"),
            Self::Volumes(volumes) => {
                write!(f, "{volumes} volumes: a layout has 1 to {VOLUMES_MAX}")
            }
            Self::Baseline { volume_type, size_gib, named, has } => write!(
                f,
                "{named} IOPS: those of {volume_type} follow from its size, and {size_gib} GiB \
                 have {has}; leave them out"
            ),
            Self::Rules(invalid) => invalid.fmt(f),
        }
    }
}

impl std::error::Error for BadLayout {}

impl From<InvalidSpec> for BadLayout {
    fn from(invalid: InvalidSpec) -> Self {
        Self::Rules(invalid)
    }
}

/// A number or a word of a text.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Token {
    /// As it is written, such as `1.5` and `3,000`.
    Number(String),
    /// As it is written: `MB/s` is a unit, and `mb/s` may be another one.
    Word(String),
}

impl Token {
    fn bad(&self, expected: &'static str) -> BadLayout {
        let (Self::Number(found) | Self::Word(found)) = self;
        let mut found = found.to_lowercase();
        if let Some((end, _)) = found.char_indices().nth(FOUND_CHARS_MAX) {
            found.truncate(end);
            found.push('…');
        }
        BadLayout::Word(found, expected)
    }
}

const A_TYPE: &str = "standard, st1, sc1, gp2, gp3, io1 or io2";
const A_SIZE: &str = "a size in GiB, such as 100 GiB";
const A_UNIT: &str = "GiB, TiB, IOPS or MiB/s after the number";
const MORE: &str = "a number with IOPS or MiB/s, or Multi-Attach";

/// Reads a layout by the rules of a day: `gp3 100` has the defaults of its type. Case and spaces do
/// not matter, and thousands may be separated.
///
/// # Errors
/// Returns [`BadLayout`] if the text is not a layout that the rules allow.
pub fn parse(text: &str, rules: &Rules) -> Result<Layout, BadLayout> {
    let tokens = tokens(text);
    let (volumes, rest) = match tokens.as_slice() {
        [Token::Number(count), Token::Word(times), rest @ ..]
            if ["x", "×", "*"].contains(&times.as_str()) =>
        {
            (volumes_of(count)?, rest)
        }
        [Token::Number(_), other, ..] => {
            return Err(other.bad("`x` between the number of volumes and their type"));
        }
        [Token::Number(_)] => return Err(BadLayout::Ends("a type of volume")),
        rest => (1, rest),
    };
    let each = volume(rest, rules)?;
    Ok(Layout { volumes, ..Layout::one(each) })
}

fn volumes_of(number: &str) -> Result<u32, BadLayout> {
    let expected = |_| BadLayout::Quantity(number.to_owned(), "a whole number of volumes".into());
    let count = quantity::whole_saturating(number, Measure::Iops).map_err(expected)?;
    let volumes = u32::try_from(count).ok().filter(|count| (1..=VOLUMES_MAX).contains(count));
    volumes.ok_or(BadLayout::Volumes(count))
}

/// Reads a number and its unit.
fn read(number: &str, unit: &str, measure: Measure) -> Result<u32, BadLayout> {
    let text = format!("{number} {unit}");
    let value = quantity::whole_saturating(&text, measure)
        .map_err(|expected| BadLayout::Quantity(text.trim().to_owned(), expected))?;
    Ok(saturating::<_, u32>(value))
}

/// One volume: its type, its size, and what may follow.
fn volume(tokens: &[Token], rules: &Rules) -> Result<VolumeSpec, BadLayout> {
    let (name, rest) = match tokens {
        [Token::Word(name), rest @ ..] => (name, rest),
        [other, ..] => return Err(other.bad(A_TYPE)),
        [] => return Err(BadLayout::Ends("a type of volume")),
    };
    let volume_type = name
        .to_lowercase()
        .parse::<VolumeType>()
        .map_err(|_| Token::Word(name.clone()).bad(A_TYPE))?;
    let (size_gib, mut rest) = size(rest)?;
    let mut request = VolumeRequest {
        volume_type,
        size_gib,
        iops: None,
        throughput_mibps: None,
        multi_attach: false,
    };
    while !rest.is_empty() {
        rest = property(&mut request, rest)?;
    }
    resolve(&request, rules)
}

fn size(tokens: &[Token]) -> Result<(u32, &[Token]), BadLayout> {
    let (number, rest) = match tokens {
        [Token::Number(number), rest @ ..] => (number, rest),
        [other, ..] => return Err(other.bad(A_SIZE)),
        [] => return Err(BadLayout::Ends(A_SIZE)),
    };
    let (unit, rest) = match rest {
        [Token::Word(unit), rest @ ..] if Measure::Gib.unit(unit).is_some() => {
            (unit.as_str(), rest)
        }
        [Token::Word(unit), ..] if !unit.eq_ignore_ascii_case(MULTI_ATTACH) => {
            return Err(rest[0].bad("GiB or TiB after the size"));
        }
        rest => ("", rest),
    };
    Ok((read(number, unit, Measure::Gib)?, rest))
}

const MULTI_ATTACH: &str = "multi-attach";

/// Reads the first property after a size. Returns the remaining tokens.
fn property<'a>(
    request: &mut VolumeRequest,
    tokens: &'a [Token],
) -> Result<&'a [Token], BadLayout> {
    let (field, number, name, rest) = match tokens {
        [Token::Word(word), rest @ ..] if word.eq_ignore_ascii_case(MULTI_ATTACH) => {
            if request.multi_attach {
                return Err(BadLayout::Twice("Multi-Attach"));
            }
            request.multi_attach = true;
            return Ok(rest);
        }
        [Token::Number(number), Token::Word(unit), rest @ ..] => {
            let measures = [Measure::Gib, Measure::Iops, Measure::Mibps];
            let measure = measures.into_iter().find(|measure| measure.unit(unit).is_some());
            let measure = measure.ok_or_else(|| tokens[1].bad(A_UNIT))?;
            let (field, name) = match measure {
                Measure::Gib => return Err(BadLayout::Twice("the size")),
                Measure::Iops => (&mut request.iops, "IOPS"),
                Measure::Mibps => (&mut request.throughput_mibps, "MiB/s"),
            };
            (field, read(number, unit, measure)?, name, rest)
        }
        [Token::Number(_), other, ..] => return Err(other.bad(A_UNIT)),
        [Token::Number(_)] => return Err(BadLayout::Ends(A_UNIT)),
        [other, ..] => return Err(other.bad(MORE)),
        [] => return Ok(tokens),
    };
    if field.is_some() {
        return Err(BadLayout::Twice(name));
    }
    *field = Some(number);
    Ok(rest)
}

/// Resolves the volume by the rules. IOPS that follow from the size are printed, so the text may
/// state them.
fn resolve(request: &VolumeRequest, rules: &Rules) -> Result<VolumeSpec, BadLayout> {
    let has = rules.of(request.volume_type).and_then(|it| it.iops.baseline(request.size_gib));
    let (Some(has), Some(named)) = (has, request.iops) else {
        return Ok(rules.resolve(request)?);
    };
    let spec = rules.resolve(&VolumeRequest { iops: None, ..*request })?;
    let VolumeRequest { volume_type, size_gib, .. } = *request;
    if named == has {
        Ok(spec)
    } else {
        Err(BadLayout::Baseline { volume_type, size_gib, named, has })
    }
}

/// Returns the numbers and words of a text. Commas between them are ignored.
fn tokens(text: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        if first.is_ascii_digit() {
            let (number, behind) = rest.split_at(number_length(rest));
            tokens.push(Token::Number(number.to_owned()));
            rest = behind;
        } else if first.is_whitespace() || first == ',' {
            rest = &rest[first.len_utf8()..];
        } else if ['x', 'X', '×', '*'].contains(&first) {
            tokens.push(Token::Word(first.to_lowercase().collect()));
            rest = &rest[first.len_utf8()..];
        } else {
            // A type ends in a digit, a unit does not: `gp3` and `100GiB,3000IOPS`.
            let ends = |c: char| c.is_whitespace() || c == ',';
            let word = rest.split(ends).next().unwrap_or(rest);
            tokens.push(Token::Word(word.to_owned()));
            rest = &rest[word.len()..];
        }
    }
    tokens
}

/// Returns the length of the number that a text begins with: `3000`, `3,000`, `3_000`, `3'000`,
/// `1.5`. A separator has three digits behind it.
fn number_length(text: &str) -> usize {
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let mut length = digits(text);
    while let Some(separator) = text[length..].chars().next()
        && THOUSANDS.contains(&separator)
        && digits(&text[length + separator.len_utf8()..]) == 3
    {
        length += separator.len_utf8() + 3;
    }
    let is_decimal = |byte: &u8| byte.is_ascii_digit() || *byte == b'.';
    if text[length..].starts_with('.') {
        length + text[length..].bytes().take_while(is_decimal).count()
    } else {
        length
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> Result<String, String> {
        let layout = parse(text, Rules::newest()).map_err(|bad| bad.to_string())?;
        Ok(layout.to_string())
    }

    #[test]
    fn words_are_read_as_people_write_them() {
        for (text, layout) in [
            ("gp3 100", "gp3 100 GiB, 3000 IOPS, 125 MiB/s"),
            ("  GP3   100gib ", "gp3 100 GiB, 3000 IOPS, 125 MiB/s"),
            ("2x gp3 1 TiB,16,000iops,1'000 MIB/S", "2 x gp3 1024 GiB, 16000 IOPS, 1000 MiB/s"),
            ("5×gp3 20 GiB", "5 x gp3 20 GiB, 3000 IOPS, 125 MiB/s"),
            ("gp2 100", "gp2 100 GiB, 300 IOPS"),
            ("gp2 100 GiB, 300 IOPS", "gp2 100 GiB, 300 IOPS"),
            ("io2 100 GiB, 5_000 IOPS, multi-attach", "io2 100 GiB, 5000 IOPS, Multi-Attach"),
            ("gp3 100 GiB 250 MiB/s 4000 IOPS", "gp3 100 GiB, 4000 IOPS, 250 MiB/s"),
            ("st1 125 GiB", "st1 125 GiB"),
            ("gp3 1.5T", "gp3 1536 GiB, 3000 IOPS, 125 MiB/s"),
            ("gp3 100GB, 4kIOPS, 250 MBps", "gp3 100 GiB, 4000 IOPS, 250 MiB/s"),
            ("2 x gp3 0.5 TiB 1 GiB/s 4,096 IOPS", "2 x gp3 512 GiB, 4096 IOPS, 1024 MiB/s"),
        ] {
            assert_eq!(read(text).as_deref(), Ok(layout), "{text}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, part) in [
            ("", "it ends where a type of volume is expected"),
            ("gp9 100", "\"gp9\": expected standard, st1, sc1, gp2, gp3, io1 or io2"),
            ("gp3", "it ends where a size in GiB"),
            ("gp3 many", "\"many\": expected a size in GiB"),
            ("gp3 100 potatoes", "\"potatoes\": expected GiB or TiB"),
            ("gp3 1.5", "\"1.5\": expected a size in GiB, with or without a unit"),
            ("gp3 1.234 TiB", "1.234 may be 1234: write 1234"),
            ("1.5 x gp3 100", "\"1.5\": expected a whole number of volumes"),
            ("gp3 100, 3000 IOPS, 125 Mbps", "\"mbps\": expected GiB, TiB, IOPS or MiB/s"),
            ("100 gp3", "\"gp3\": expected `x`"),
            ("3", "it ends where a type"),
            ("0 x gp3 100", "0 volumes: a layout has 1 to 128"),
            ("129 x gp3 100", "129 volumes"),
            ("gp3 100 GiB, 3000", "it ends where GiB, TiB, IOPS or MiB/s"),
            ("gp3 100 GiB, 3000 Mb", "the size is named twice"),
            ("gp3 100 GiB, 3000 IOPS, 4000 IOPS", "IOPS is named twice"),
            ("gp3 100 GiB, 100 GiB", "the size is named twice"),
            ("gp3 100 GiB and more", "\"and\": expected a number with IOPS or MiB/s"),
            ("gp2 100 GiB, 400 IOPS", "100 GiB have 300; leave them out"),
            ("io1 100", "The parameter iops must be specified for io1 volumes."),
            ("gp3 100 GiB, 1 IOPS", "Volume iops of 1 is too low; minimum is 3000"),
            ("gp3 99999999999999999999 GiB", "too large for volume type gp3; maximum is"),
            ("st1 100", "at least 125 GiB"),
            ("st1 500 GiB, 500 IOPS", "The parameter iops is not supported for st1"),
            ("gp3 100 GiB, Multi-Attach", "multi-attach-enabled is not supported for gp3"),
        ] {
            let error = read(text).expect_err(text);
            assert!(error.contains(part), "{text}: {error}");
        }
        let before = parse("gp3 100", &Rules::all()[0]).expect_err("no gp3 then");
        assert!(before.to_string().contains("Unsupported volume type 'gp3'"), "{before}");
    }

    fn layouts() -> impl Strategy<Value = Layout> {
        let count = prop_oneof![Just(1), 1..=VOLUMES_MAX];
        let kinds = proptest::sample::select(VolumeType::ALL.to_vec());
        let iops = proptest::option::of(3_000..80_000_u32);
        let all = (count, kinds, 1..20_000_u32, iops, proptest::option::of(125..2_000_u32));
        all.prop_filter_map("legal", |(volumes, volume_type, size_gib, iops, throughput_mibps)| {
            let multi_attach = size_gib % 2 == 0;
            let request =
                VolumeRequest { volume_type, size_gib, iops, throughput_mibps, multi_attach };
            // As many of the properties as the type has.
            let fewer = [
                request,
                VolumeRequest { multi_attach: false, ..request },
                VolumeRequest { throughput_mibps: None, ..request },
                VolumeRequest {
                    iops: None,
                    throughput_mibps: None,
                    multi_attach: false,
                    ..request
                },
            ];
            let each = fewer.iter().find_map(|fewer| Rules::newest().resolve(fewer).ok())?;
            Some(Layout { volumes, ..Layout::one(each) })
        })
    }

    proptest! {
        /// Compared with the layout from which the text was formatted.
        #[test]
        fn words_lead_back_to_their_layout(
            layout in layouts(),
            upper in any::<bool>(),
            spaces in "[ \t]{1,3}",
            tight in any::<bool>(),
        ) {
            let words = layout.to_string();
            prop_assert_eq!(parse(&words, Rules::newest()), Ok(layout));
            let words = if upper { words.to_uppercase() } else { words };
            let tighter = words.replace(", ", ",").replace(" IOPS", "iops");
            let words = if tight { tighter } else { words };
            let words = words.replace(' ', &spaces);
            prop_assert_eq!(parse(&words, Rules::newest()), Ok(layout), "{}", words);
        }

        #[test]
        fn any_text_is_a_layout_or_an_error(text in ".{0,40}") {
            if let Err(bad) = parse(&text, Rules::newest()) {
                prop_assert!(!bad.to_string().is_empty());
            }
        }
    }
}
