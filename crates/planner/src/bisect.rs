//! Bisection: the first or the last number of a range of which there is something.

/// The least number of a range of which there is something, and what. If there is something of a
/// number, there is of all higher ones.
pub(crate) fn least<T>((from, to): (u32, u32), of: impl Fn(u32) -> Option<T>) -> Option<(u32, T)> {
    let mut found = (to, of(to)?);
    let mut low = from;
    while low < found.0 {
        let middle = low + (found.0 - low) / 2;
        match of(middle) {
            Some(there) => found = (middle, there),
            None => low = middle + 1,
        }
    }
    Some(found)
}

/// The largest number of a range of which there is something, and what. If there is something of a
/// number, there is of all lower ones.
pub(crate) fn largest<T>(
    (from, to): (u32, u32),
    of: impl Fn(u32) -> Option<T>,
) -> Option<(u32, T)> {
    let mut found = (from, of(from)?);
    let mut high = to;
    while found.0 < high {
        let middle = found.0 + (high - found.0).div_ceil(2);
        match of(middle) {
            Some(there) => found = (middle, there),
            None => high = middle - 1,
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The oracle asks for every number.
        #[test]
        fn the_first_and_the_last_are_found(
            from in 0..50_u32,
            length in 0..50_u32,
            edge in 0..120_u32,
        ) {
            let to = from + length;
            let high = |number| (number >= edge).then_some(number * 2);
            let first = (from..=to).find(|number| *number >= edge);
            prop_assert_eq!(least((from, to), high), first.map(|it| (it, it * 2)));
            let low = |number| (number <= edge).then_some(number * 2);
            let last = (from..=to).rev().find(|number| *number <= edge);
            prop_assert_eq!(largest((from, to), low), last.map(|it| (it, it * 2)));
        }
    }
}
