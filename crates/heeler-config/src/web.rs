//! Port and origins of the dashboard.

use std::num::NonZeroU16;

use serde_json::{Value as Json, json};
use url::{Host, Url};

use crate::reader::ConfigReader;
use crate::shape::ValueShape;
use crate::value::{ConfigValue, parse_text};
use crate::yaml::{YamlKind, YamlNode};

/// Port of the dashboard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WebPort {
    Fixed(NonZeroU16),
    /// First free port, starting at the default port.
    Auto,
}

/// Config word for [`WebPort::Auto`].
const AUTO: &str = "auto";

impl ConfigValue for WebPort {
    fn shape() -> ValueShape {
        ValueShape::OneOf(vec![NonZeroU16::shape(), ValueShape::Words(vec![AUTO])])
    }
    fn read(node: &YamlNode, reader: &mut ConfigReader) -> Option<WebPort> {
        match &node.kind {
            YamlKind::Scalar(scalar) if scalar.text == AUTO => Some(WebPort::Auto),
            _ => NonZeroU16::read(node, reader).map(WebPort::Fixed),
        }
    }
    fn show(&self) -> Json {
        match self {
            WebPort::Fixed(port) => json!(port.get()),
            WebPort::Auto => json!(AUTO),
        }
    }
}

/// Origin under which pages are served: a scheme, a host and optionally a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebOrigin(String);

impl WebOrigin {
    /// Returns the origin as browsers write it.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn parse(text: &str) -> Result<WebOrigin, String> {
        let url: Url = text.parse().map_err(|error: url::ParseError| error.to_string())?;
        // Browsers send an origin without a path, so anything more would never match.
        let is_bare = url.path() == "/" && url.query().is_none() && url.fragment().is_none();
        let is_plain = url.username().is_empty() && url.password().is_none();
        let is_web = matches!(url.scheme(), "http" | "https");
        match url.host() {
            Some(Host::Domain(_) | Host::Ipv4(_) | Host::Ipv6(_))
                if is_web && is_bare && is_plain =>
            {
                // In the form in which browsers send it.
                Ok(WebOrigin(url.origin().ascii_serialization()))
            }
            _ => Err("it is more than a scheme, a host and a port".to_owned()),
        }
    }
}

impl ConfigValue for WebOrigin {
    fn shape() -> ValueShape {
        let example = "`https://heeler.example.com`";
        ValueShape::Format { what: "an address without a path", example, pattern: None }
    }
    fn read(node: &YamlNode, reader: &mut ConfigReader) -> Option<WebOrigin> {
        let form = ("an address without a path", "`https://heeler.example.com`");
        parse_text(node, reader, form, WebOrigin::parse)
    }
    fn show(&self) -> Json {
        self.0.show()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_what_browsers_send() {
        let parse = |text: &str| WebOrigin::parse(text).map(|origin| origin.0);
        assert_eq!(parse("https://Heeler.Example.com/"), Ok("https://heeler.example.com".into()));
        assert_eq!(parse("http://10.0.0.7:8080"), Ok("http://10.0.0.7:8080".into()));
        assert_eq!(parse("https://x.example:443"), Ok("https://x.example".into()));
        for text in ["https://x.example/path", "ftp://x.example", "https://a@x.example", "x", ""] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
