//! Parameters and replies, independent of their bytes.

/// A value.
#[derive(Clone, PartialEq, Debug)]
pub enum Value {
    /// No value, as if the parameter is left out.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number; whole ones are exact up to 2^53.
    Number(f64),
    /// A text.
    Text(String),
    /// A time, in seconds of Unix time.
    Time(f64),
    /// Values in order.
    List(Vec<Value>),
    /// Values by name, in the order of a reply.
    Map(Vec<(String, Value)>),
    /// Values of a reply by a name that the client has chosen; in XML they are entries of a list.
    Dictionary(Vec<(String, Value)>),
}

impl Value {
    /// Creates a text.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    /// Creates a time in whole seconds.
    #[must_use]
    #[allow(clippy::cast_precision_loss)] // exact for a hundred million years
    pub const fn time(unix_s: u64) -> Self {
        Self::Time(unix_s as f64)
    }

    /// Creates a map of values by name.
    #[must_use]
    pub fn map<const N: usize>(fields: [(&str, Self); N]) -> Self {
        Self::Map(fields.map(|(name, value)| (name.to_owned(), value)).into())
    }

    /// Adds a value to the map, if there is one.
    #[must_use]
    pub fn with_some(mut self, name: &str, value: Option<Self>) -> Self {
        if let (Self::Map(fields), Some(value)) = (&mut self, value) {
            fields.push((name.to_owned(), value));
        }
        self
    }
}
