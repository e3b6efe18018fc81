//! Bisection: the first or the last number of a range for which a function returns a value.

/// Returns the least number of a range for which `of` returns a value, and the value. If `of`
/// returns one for a number, it must return one for all higher numbers.
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

/// Returns the largest number of a range for which `of` returns a value, and the value. If `of`
/// returns one for a number, it must return one for all lower numbers.
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

/// Returns the result of [`least`], and begins at a guess. A good guess takes hardly more than two
/// calls: for itself and for the number below it.
pub(crate) fn least_near<T>(
    (from, to): (u32, u32),
    guess: u32,
    of: impl Fn(u32) -> Option<T>,
) -> Option<(u32, T)> {
    let guess = guess.clamp(from, to.max(from));
    let mut step = 1_u32;
    let mut low = from;
    let mut found = match of(guess) {
        Some(there) => (guess, there),
        None => {
            let mut missed = guess;
            loop {
                if missed >= to {
                    return None;
                }
                let next = missed.saturating_add(step).min(to);
                match of(next) {
                    Some(there) => {
                        low = missed + 1;
                        break (next, there);
                    }
                    None => missed = next,
                }
                step = step.saturating_mul(2);
            }
        }
    };
    // Downward, unless the value right below is known.
    while low < found.0 && found.0 <= guess {
        let next = found.0.saturating_sub(step).max(low);
        match of(next) {
            Some(there) => found = (next, there),
            None => {
                low = next + 1;
                break;
            }
        }
        step = step.saturating_mul(2);
    }
    if low < found.0
        && let Some(below) = least((low, found.0 - 1), of)
    {
        found = below;
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Compared with the result of asking for every number.
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
            for guess in 0..130 {
                let near = least_near((from, to), guess, high);
                prop_assert_eq!(near, first.map(|it| (it, it * 2)), "{}", guess);
            }
            prop_assert_eq!(largest((from, to), low), last.map(|it| (it, it * 2)));
        }
    }
}
