//! XML documents of the kind that EC2 writes: elements and text, one namespace, no other
//! attributes. Reading returns an error for anything that is not XML, and bounds depth and size.

use alloc::borrow::Cow;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use quick_xml::escape::resolve_xml_entity;
use quick_xml::events::{BytesDecl, BytesEnd, BytesRef, BytesStart, BytesText, Event};
use quick_xml::{Reader, Writer};

/// The deepest nesting that is read. EC2's deepest reply has about ten levels.
pub const DEPTH_MAX: usize = 32;
/// The most elements that are read: ten thousand volumes with a hundred elements each.
pub const ELEMENTS_MAX: usize = 1_000_000;

/// One element with its content. Text between child elements is dropped.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Element {
    /// Its name, without a namespace prefix.
    pub name: String,
    /// Value of its `xmlns` attribute.
    pub namespace: Option<String>,
    /// Its text; empty when it has children.
    pub text: String,
    /// Its child elements, in order.
    pub children: Vec<Element>,
}

/// Why a text cannot be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum XmlError {
    /// The text is not XML.
    Malformed {
        /// Offset of the error, in bytes.
        offset: u64,
        /// The error.
        message: String,
    },
    /// More than [`DEPTH_MAX`] levels.
    TooDeep,
    /// More than [`ELEMENTS_MAX`] elements.
    TooManyElements,
}

impl fmt::Display for XmlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed { offset, message } => write!(f, "at byte {offset}: {message}"),
            Self::TooDeep => write!(f, "elements are nested more than {DEPTH_MAX} deep"),
            Self::TooManyElements => write!(f, "there are more than {ELEMENTS_MAX} elements"),
        }
    }
}

impl Element {
    /// Creates an empty element.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// Creates an element with text.
    #[must_use]
    pub fn text(name: &str, text: impl fmt::Display) -> Self {
        Self { name: name.into(), text: text.to_string(), ..Self::default() }
    }

    /// Creates an element with children.
    #[must_use]
    pub fn list(name: &str, children: impl IntoIterator<Item = Self>) -> Self {
        Self { name: name.into(), children: children.into_iter().collect(), ..Self::default() }
    }

    /// Appends a child.
    #[must_use]
    pub fn with(mut self, child: Self) -> Self {
        self.children.push(child);
        self
    }

    /// Appends a child, if there is one.
    #[must_use]
    pub fn with_some(mut self, child: Option<Self>) -> Self {
        self.children.extend(child);
        self
    }

    /// Returns the first child with this name.
    #[must_use]
    pub fn child(&self, name: &str) -> Option<&Self> {
        self.children.iter().find(|child| child.name == name)
    }

    /// Returns the text of the first child with this name.
    #[must_use]
    pub fn child_text(&self, name: &str) -> Option<&str> {
        self.child(name).map(|child| child.text.as_str())
    }

    /// Returns the children of the first child with this name, as in EC2's
    /// `<volumeSet><item/>...</volumeSet>`.
    #[must_use]
    pub fn items(&self, name: &str) -> &[Self] {
        self.child(name).map_or(&[], |child| child.children.as_slice())
    }

    /// Returns the whole document with its declaration.
    #[must_use]
    pub fn document(&self) -> String {
        let mut writer = Writer::new(Vec::new());
        let written = self.write_after_declaration(&mut writer);
        debug_assert!(written.is_ok(), "writing to memory does not fail");
        // Everything written came from strings, so it is UTF-8.
        String::from_utf8(writer.into_inner()).unwrap_or_default()
    }

    fn write_after_declaration(
        &self,
        writer: &mut Writer<Vec<u8>>,
    ) -> Result<(), quick_xml::Error> {
        writer.write_event(Event::Decl(BytesDecl::new("1.0", Some("UTF-8"), None)))?;
        writer.write_event(Event::Text(BytesText::from_escaped("\n")))?;
        self.write(writer)
    }

    /// The program bounds the depth: code, not input, builds the elements that are written.
    fn write(&self, writer: &mut Writer<Vec<u8>>) -> Result<(), quick_xml::Error> {
        let mut start = BytesStart::new(self.name.as_str());
        if let Some(namespace) = &self.namespace {
            start.push_attribute(("xmlns", namespace.as_str()));
        }
        if self.children.is_empty() && self.text.is_empty() {
            return Ok(writer.write_event(Event::Empty(start))?);
        }
        writer.write_event(Event::Start(start))?;
        if self.children.is_empty() {
            writer.write_event(Event::Text(BytesText::from_escaped(escaped(&self.text))))?;
        }
        for child in &self.children {
            child.write(writer)?;
        }
        Ok(writer.write_event(Event::End(BytesEnd::new(self.name.as_str())))?)
    }

    /// Parses a document and returns its root element.
    ///
    /// # Errors
    /// See [`XmlError`]. Entities other than XML's own five are refused, so nothing can expand.
    pub fn parse(document: &str) -> Result<Self, XmlError> {
        let mut reader = Reader::from_str(document);
        let mut open: Vec<Self> = Vec::new();
        let mut elements: usize = 0;
        loop {
            let event = reader.read_event();
            let offset = reader.buffer_position();
            let malformed = |message: String| XmlError::Malformed { offset, message };
            let mut closed = None;
            match event.map_err(|error| malformed(error.to_string()))? {
                Event::Start(start) => open.push(opened(&start, offset)?),
                Event::Empty(start) => closed = Some(opened(&start, offset)?),
                Event::End(_) => closed = open.pop(),
                Event::Text(text) => append(&mut open, &text.xml10_content(), offset)?,
                Event::CData(text) => append(&mut open, &text.xml10_content(), offset)?,
                Event::GeneralRef(entity) => {
                    append(&mut open, &resolved(&entity, offset)?, offset)?
                }
                Event::DocType(_) => return Err(malformed("DOCTYPE is not accepted".into())),
                Event::Comment(_) | Event::Decl(_) | Event::PI(_) => {}
                Event::Eof => return Err(malformed("the document ends too early".into())),
            }
            if open.len() > DEPTH_MAX {
                return Err(XmlError::TooDeep);
            }
            let Some(element) = closed else { continue };
            elements += 1;
            if elements > ELEMENTS_MAX {
                return Err(XmlError::TooManyElements);
            }
            match open.last_mut() {
                Some(parent) => {
                    parent.text.clear();
                    parent.children.push(element);
                }
                None => return nothing_follows(&mut reader).map(|()| element),
            }
        }
    }
}

/// After the root element only comments, processing instructions and white space are allowed.
fn nothing_follows(reader: &mut Reader<&[u8]>) -> Result<(), XmlError> {
    loop {
        let event = reader.read_event();
        let offset = reader.buffer_position();
        let malformed = |message: String| XmlError::Malformed { offset, message };
        match event.map_err(|error| malformed(error.to_string()))? {
            Event::Eof => return Ok(()),
            Event::Comment(_) | Event::PI(_) => {}
            Event::Text(text) if text.xml10_content().trim().is_empty() => {}
            _ => return Err(malformed("something follows the root element".into())),
        }
    }
}

fn opened(start: &BytesStart<'_>, offset: u64) -> Result<Element, XmlError> {
    let malformed = |message: String| XmlError::Malformed { offset, message };
    let mut element = Element::new(start.local_name().as_ref());
    for attribute in start.attributes() {
        let attribute = attribute.map_err(|error| malformed(error.to_string()))?;
        if attribute.key.as_ref() == "xmlns" {
            let value = quick_xml::escape::unescape(attribute.value.as_ref())
                .map_err(|error| malformed(error.to_string()))?;
            element.namespace = Some(value.into_owned());
        }
    }
    Ok(element)
}

/// Adds text to the innermost open element, unless that has children.
fn append(open: &mut [Element], text: &str, offset: u64) -> Result<(), XmlError> {
    match open.last_mut() {
        Some(element) => {
            if element.children.is_empty() {
                element.text.push_str(text);
            }
            Ok(())
        }
        None if text.trim().is_empty() => Ok(()),
        None => Err(XmlError::Malformed {
            offset,
            message: "there is text before the root element".into(),
        }),
    }
}

fn resolved(entity: &BytesRef<'_>, offset: u64) -> Result<String, XmlError> {
    let malformed = |message: String| XmlError::Malformed { offset, message };
    if let Some(c) = entity.resolve_char_ref().map_err(|error| malformed(error.to_string()))? {
        return Ok(String::from(c));
    }
    let name: &str = entity;
    let text = resolve_xml_entity(name)
        .ok_or_else(|| malformed(format!("the entity &{name}; is unknown")))?;
    Ok(text.into())
}

/// Escapes text for XML: markup is escaped, a carriage return is protected from normalization, and
/// control characters that XML 1.0 cannot express become U+FFFD.
#[must_use]
pub fn escaped(text: &str) -> Cow<'_, str> {
    let plain = |c: char| !matches!(c, '<' | '>' | '&' | '"' | '\'' | '\r') && is_xml_char(c);
    if text.chars().all(plain) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&apos;"),
            '\r' => out.push_str("&#xD;"),
            c if is_xml_char(c) => out.push(c),
            _ => out.push('\u{fffd}'),
        }
    }
    Cow::Owned(out)
}

const fn is_xml_char(c: char) -> bool {
    let high = matches!(c, '\u{e000}'..='\u{fffd}' | '\u{10000}'..);
    high || matches!(c, '\t' | '\n' | '\r' | '\u{20}'..='\u{d7ff}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_document_reads_as_ec2_writes_it() {
        let mut root = Element::list(
            "R",
            [
                Element::text("requestId", "1"),
                Element::list("set", [Element::list("item", [Element::text("k", "<&>\"'\r")])]),
                Element::new("nothing"),
            ],
        );
        root.namespace = Some("http://x/&".into());
        let text = root.document();
        assert_eq!(
            text,
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<R xmlns=\"http://x/&amp;\">\
             <requestId>1</requestId><set><item><k>&lt;&amp;&gt;&quot;&apos;&#xD;</k></item></set>\
             <nothing/></R>"
        );
        assert_eq!(Element::parse(&text), Ok(root.clone()));
        assert_eq!(root.items("set")[0].child_text("k"), Some("<&>\"'\r"));
        assert_eq!(root.items("absent"), &[]);
    }

    #[test]
    fn white_space_comments_and_cdata_are_understood() {
        let text =
            "<?xml version=\"1.0\"?>\n<!-- c -->\n<a>\n  <b>x<![CDATA[<y>]]>&#65;</b>\n</a>\n";
        let root = Element::parse(text).unwrap();
        assert_eq!(root.text, "");
        assert_eq!(root.child_text("b"), Some("x<y>A"));
    }

    #[test]
    fn malformed_document_is_refused() {
        for text in [
            "",
            "x",
            "<a>",
            "</a>",
            "<a></b>",
            "<a/><b/>",
            "<a>&bomb;</a>",
            "<a/>x",
            "<!DOCTYPE a [<!ENTITY b \"c\">]><a>&b;</a>",
            "<a",
            "<a>&#x110000;</a>",
        ] {
            assert!(matches!(Element::parse(text), Err(XmlError::Malformed { .. })), "{text}");
        }
        let deep = "<a>".repeat(DEPTH_MAX + 1);
        assert_eq!(Element::parse(&deep), Err(XmlError::TooDeep));
    }

    fn element() -> impl Strategy<Value = Element> {
        let name = "[a-zA-Z][a-zA-Z0-9]{0,8}";
        let leaf = (name, "(?s).{0,12}").prop_map(|(n, t)| {
            let kept: String = t.chars().filter(|c| is_xml_char(*c)).collect();
            Element::text(&n, kept)
        });
        leaf.prop_recursive(4, 40, 5, move |inner| {
            (name, proptest::collection::vec(inner, 1..5)).prop_map(|(n, c)| Element::list(&n, c))
        })
    }

    proptest! {
        #[test]
        fn written_document_parses_to_itself(root in element()) {
            prop_assert_eq!(Element::parse(&root.document()), Ok(root));
        }

        #[test]
        fn reading_never_panics(text in "\\PC{0,60}|[<>/a&;!\\[\\]#x?\" -]{0,40}") {
            let _ = Element::parse(&text);
        }

        #[test]
        fn any_text_is_writable(text in "(?s).{0,20}") {
            prop_assert!(Element::parse(&Element::text("a", text).document()).is_ok());
        }
    }
}
