//! Paging of results. A token holds the last key of a page, so deletions between two pages cause no
//! error.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::str::FromStr;

use super::error::ApiError;

/// Maximum of bytes of a key. Keys are ids and tag keys, so a longer token is not this server's.
const TOKEN_BYTES_MAX: usize = 2_048;

/// The requested part of the results.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Page {
    max: Option<usize>,
    after: Option<String>,
}

impl Page {
    /// Requests at most `max` results, after the page that returned `token`.
    ///
    /// # Errors
    /// `InvalidPaginationToken`.
    pub fn new(max: Option<usize>, token: Option<String>) -> Result<Self, ApiError> {
        let after = token.map(|token| decoded(&token)).transpose()?;
        Ok(Self { max, after })
    }

    /// Limits the page to `max` results, even if the client named no number.
    #[must_use]
    pub fn at_most(self, max: usize) -> Self {
        Self { max: Some(self.max.map_or(max, |wanted| wanted.min(max))), ..self }
    }

    /// Refuses a page of objects that the client names by `ids`, which EC2 calls `parameter`.
    ///
    /// # Errors
    /// `InvalidParameterCombination`.
    pub fn refuse_beside<K>(&self, ids: &[K], parameter: &str) -> Result<(), ApiError> {
        if ids.is_empty() || (self.max.is_none() && self.after.is_none()) {
            return Ok(());
        }
        let message =
            format!("The parameter {parameter} cannot be used with the parameter maxResults");
        Err(ApiError::new("InvalidParameterCombination", message))
    }

    /// Returns the objects of a map that may be on the page: those of `ids` if there are any, else
    /// all from the page's beginning. So the last page of many costs no more than the first.
    pub fn of<'a, K: Ord + Copy + FromStr, V>(
        &self,
        all: &'a BTreeMap<K, V>,
        ids: &[K],
    ) -> Box<dyn Iterator<Item = &'a V> + 'a> {
        if !ids.is_empty() {
            let ids: BTreeSet<K> = ids.iter().copied().collect();
            return Box::new(ids.into_iter().filter_map(|id| all.get(&id)));
        }
        let begin = self.after::<K>().map_or(Bound::Unbounded, Bound::Excluded);
        Box::new(all.range((begin, Bound::Unbounded)).map(|(_, object)| object))
    }

    /// Returns the id after which the page begins; `None` if the key is not such an id.
    pub fn after<K: FromStr>(&self) -> Option<K> {
        self.after.as_ref().and_then(|after| after.parse().ok())
    }

    /// Cuts the page out of `all`, which must be ordered by `key`. Also returns the token of the
    /// next page, if there is one.
    pub fn cut<T>(
        &self,
        all: impl Iterator<Item = T>,
        key: impl Fn(&T) -> String,
    ) -> (Vec<T>, Option<String>) {
        let is_new = |item: &T| self.after.as_ref().is_none_or(|after| key(item) > *after);
        let mut rest = all.skip_while(|item| !is_new(item)).peekable();
        let mut page = Vec::new();
        while page.len() < self.max.unwrap_or(usize::MAX) {
            match rest.next() {
                Some(item) => page.push(item),
                None => return (page, None),
            }
        }
        let more = rest.peek().is_some();
        let token = page.last().filter(|_| more).map(|last| encoded(&key(last)));
        (page, token)
    }
}

/// Encodes a token in hexadecimal, which discourages clients from parsing or building tokens.
pub(super) fn encoded(key: &str) -> String {
    key.bytes().map(|byte| format!("{byte:02x}")).collect()
}

fn decoded(token: &str) -> Result<String, ApiError> {
    let broken = || {
        let text = format!("The token '{token:.64}' was not given out by this server");
        ApiError::new("InvalidPaginationToken", text)
    };
    let plain = token.len() <= TOKEN_BYTES_MAX && token.len().is_multiple_of(2);
    if !plain || !token.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Err(broken());
    }
    let byte = |at: usize| u8::from_str_radix(token.get(at..at + 2)?, 16).ok();
    let bytes: Option<Vec<u8>> = (0..token.len()).step_by(2).map(byte).collect();
    bytes.and_then(|bytes| String::from_utf8(bytes).ok()).ok_or_else(broken)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn foreign_tokens_are_refused() {
        for token in ["x", "xx", "0", "ff", "6\u{e9}", "+1"] {
            let error = Page::new(None, Some(token.into())).unwrap_err();
            assert_eq!(error.code, "InvalidPaginationToken", "{token}");
        }
    }

    proptest! {
        /// All pages together are the complete result, even if earlier results are deleted in
        /// between.
        #[test]
        fn pages_together_are_the_complete_result(
            keys in proptest::collection::btree_set("[a-c\u{e9}]{1,3}", 0..30), max in 1_usize..7,
        ) {
            let mut left: BTreeSet<String> = keys.clone();
            let mut seen = Vec::new();
            let mut token = None;
            loop {
                let page = Page::new(Some(max), token).unwrap();
                let (items, next) = page.cut(left.iter(), |k| (*k).clone());
                prop_assert!(items.len() == max || next.is_none());
                seen.extend(items.into_iter().cloned());
                token = next;
                if token.is_none() { break; }
                // The key in the token is deleted.
                left.remove(seen.last().unwrap());
            }
            prop_assert_eq!(seen, keys.into_iter().collect::<Vec<_>>());
        }
    }
}
