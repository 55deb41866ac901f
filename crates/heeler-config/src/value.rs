//! The [`ConfigValue`] trait and its basic implementations.
//!
//! A `ConfigValue` defines how a value is read from a node, its value if the key is absent, how it
//! is rendered, and its [`ValueShape`], from which the JSON Schema and the reference page are
//! generated. Keeping these together prevents them from diverging.

use std::num::{NonZeroU16, NonZeroU32};
use std::str::FromStr;

use camino::Utf8PathBuf;
use indexmap::IndexMap;
use serde_json::{Value as Json, json};
use url::Url;

use crate::amount::{ByteSize, UsdAmount};
use crate::cron::{ConfigTimeZone, CronExpr};
use crate::duration::ConfigDuration;
use crate::interpolate::is_variable_name;
use crate::reader::{ConfigReader, SourceSpan};
use crate::shape::ValueShape;
use crate::text::did_you_mean;
use crate::yaml::{YamlKind, YamlNode, YamlScalar};
use crate::{ApprovalMode, IdParseError, LocalName, SessionMode};

/// Type of a config value.
pub(crate) trait ConfigValue: Sized {
    /// Describes the accepted form.
    fn shape() -> ValueShape;

    /// Reads a node that is not null. Faults are reported and reading continues with the remaining
    /// parts, so that one pass finds them all; returns `None` if nothing usable remains. A config
    /// with an error is never returned to the caller.
    fn read(node: &YamlNode, reader: &mut ConfigReader) -> Option<Self>;

    /// Returns the value of an absent or null key; `None` if the key is required.
    fn absent() -> Option<Self> {
        None
    }

    /// Renders the value so that reading it again yields the same value; a null is omitted.
    fn show(&self) -> Json;
}

/// Value with its source position, for later checks. It is complete or absent: if any part of it
/// had a fault, later checks do not see it and cannot report consequences of that fault.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SpannedValue<T> {
    pub(crate) value: T,
    pub(crate) at: SourceSpan,
    /// Text before variables were substituted, if it contained any.
    pub(crate) template: Option<String>,
}

impl<T: ConfigValue> ConfigValue for SpannedValue<T> {
    fn shape() -> ValueShape {
        T::shape()
    }
    fn read(node: &YamlNode, reader: &mut ConfigReader) -> Option<SpannedValue<T>> {
        let errors_before = reader.error_count();
        let value = T::read(node, reader)?;
        let template = match &node.kind {
            YamlKind::Scalar(scalar) => scalar.template.clone(),
            _ => None,
        };
        // A part may be replaced by a default after a fault; later checks would judge that default.
        (reader.error_count() == errors_before).then_some(SpannedValue {
            value,
            at: node.at,
            template,
        })
    }
    fn show(&self) -> Json {
        self.value.show()
    }
}

impl<T: ConfigValue> ConfigValue for Option<T> {
    fn shape() -> ValueShape {
        T::shape()
    }
    fn read(node: &YamlNode, reader: &mut ConfigReader) -> Option<Option<T>> {
        T::read(node, reader).map(Some)
    }
    fn absent() -> Option<Option<T>> {
        Some(None)
    }
    fn show(&self) -> Json {
        self.as_ref().map_or(Json::Null, T::show)
    }
}

impl<T: ConfigValue> ConfigValue for Vec<T> {
    fn shape() -> ValueShape {
        ValueShape::List(Box::new(T::shape()))
    }
    fn read(node: &YamlNode, reader: &mut ConfigReader) -> Option<Vec<T>> {
        let YamlKind::List(items) = &node.kind else {
            return report_expected(reader, node, "a list");
        };
        // Items with faults are left out, so that the faults of the others are found.
        Some(items.iter().filter_map(|item| read_list_item(item, reader)).collect())
    }
    fn absent() -> Option<Vec<T>> {
        Some(Vec::new())
    }
    fn show(&self) -> Json {
        self.iter().map(T::show).collect()
    }
}

impl<T: ConfigValue> ConfigValue for IndexMap<String, T> {
    fn shape() -> ValueShape {
        ValueShape::Map(Box::new(T::shape()))
    }
    fn read(node: &YamlNode, reader: &mut ConfigReader) -> Option<IndexMap<String, T>> {
        let YamlKind::Map(entries) = &node.kind else {
            return report_expected(reader, node, "a map");
        };
        // A null removes an inherited entry.
        let present = entries.iter().filter(|(_, value)| !value.is_null());
        let read =
            present.filter_map(|(key, value)| Some((key.text.clone(), T::read(value, reader)?)));
        Some(read.collect())
    }
    fn absent() -> Option<IndexMap<String, T>> {
        Some(IndexMap::new())
    }
    fn show(&self) -> Json {
        Json::Object(self.iter().map(|(key, value)| (key.clone(), value.show())).collect())
    }
}

/// Reads a list item. An empty item is a fault unless the type allows it.
fn read_list_item<T: ConfigValue>(node: &YamlNode, reader: &mut ConfigReader) -> Option<T> {
    match node.is_null() {
        // An empty item is usually a forgotten value.
        true => T::absent().or_else(|| report_expected(reader, node, "a value")),
        false => T::read(node, reader),
    }
}

/// Reports that another kind of value was expected.
pub(crate) fn report_expected<T>(
    reader: &mut ConfigReader,
    node: &YamlNode,
    what: &str,
) -> Option<T> {
    let message = format!("expected {what}, found {}", node.describe());
    reader.error(node.at, message).expected(format!("expected {what}"));
    None
}

/// Returns the scalar at a node, or reports the expected kind of value.
pub(crate) fn read_scalar<'n>(
    node: &'n YamlNode,
    reader: &mut ConfigReader,
    what: &str,
) -> Option<&'n YamlScalar> {
    match &node.kind {
        YamlKind::Scalar(scalar) => Some(scalar),
        _ => report_expected(reader, node, what),
    }
}

/// Returns a scalar that is not a quoted string; numbers and booleans are parsed from it.
fn read_plain_scalar<'n>(
    node: &'n YamlNode,
    reader: &mut ConfigReader,
    what: &str,
) -> Option<&'n str> {
    let scalar = read_scalar(node, reader, what)?;
    if scalar.plain {
        return Some(&scalar.text);
    }
    let message = format!("expected {what}, found the text {}", node.describe());
    // A quoted number is text in YAML, and other programs would read it so.
    reader.error(node.at, message).expected(format!("expected {what}")).help("remove the quotes");
    None
}

impl ConfigValue for String {
    fn shape() -> ValueShape {
        ValueShape::Text
    }
    fn read(node: &YamlNode, reader: &mut ConfigReader) -> Option<String> {
        Some(read_scalar(node, reader, "text")?.text.clone())
    }
    fn show(&self) -> Json {
        // The shown form is read again, where `${` would be a variable.
        Json::String(escape_variables(self))
    }
}

/// Text that is not empty or blank.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct NonBlankText(pub(crate) String);

impl ConfigValue for NonBlankText {
    fn shape() -> ValueShape {
        ValueShape::Text
    }
    fn read(node: &YamlNode, reader: &mut ConfigReader) -> Option<NonBlankText> {
        let text = String::read(node, reader)?;
        match text.trim().is_empty() {
            true => report_expected(reader, node, "some text"),
            false => Some(NonBlankText(text)),
        }
    }
    fn show(&self) -> Json {
        self.0.show()
    }
}

/// Escapes `${`, which would be a variable when the text is read again.
pub(crate) fn escape_variables(text: &str) -> String {
    text.replace("${", "$${")
}

impl ConfigValue for bool {
    fn shape() -> ValueShape {
        ValueShape::Bool
    }
    fn read(node: &YamlNode, reader: &mut ConfigReader) -> Option<bool> {
        match read_plain_scalar(node, reader, "true or false")? {
            // YAML 1.1's `yes` and `on` are not accepted: they are a known trap.
            "true" | "True" | "TRUE" => Some(true),
            "false" | "False" | "FALSE" => Some(false),
            _ => report_expected(reader, node, "true or false"),
        }
    }
    fn show(&self) -> Json {
        Json::Bool(*self)
    }
}

pub(crate) fn read_int(
    node: &YamlNode,
    reader: &mut ConfigReader,
    min: i64,
    max: i64,
) -> Option<i64> {
    let what = match max {
        // A limit of the type itself means nothing to people.
        max if max >= i64::from(u32::MAX) => format!("a whole number of at least {min}"),
        _ => format!("a whole number from {min} to {max}"),
    };
    let number = read_plain_scalar(node, reader, &what)?.parse().ok();
    number
        .filter(|number| (min..=max).contains(number))
        .or_else(|| report_expected(reader, node, &what))
}

macro_rules! int_value {
    ($($ty:ty: $min:literal..=$max:expr, $make:expr;)*) => { $(
        impl ConfigValue for $ty {
            fn shape() -> ValueShape {
                ValueShape::Int { min: $min, max: $max }
            }
            fn read(node: &YamlNode, reader: &mut ConfigReader) -> Option<$ty> {
                read_int(node, reader, $min, $max).and_then($make)
            }
            fn show(&self) -> Json {
                json!(self)
            }
        }
    )* };
}

int_value! {
    NonZeroU16: 1..=i64::from(u16::MAX), |number| NonZeroU16::new(u16::try_from(number).ok()?);
    NonZeroU32: 1..=i64::from(u32::MAX), |number| NonZeroU32::new(u32::try_from(number).ok()?);
}

/// Integer from `MIN` to `MAX`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BoundedInt<const MIN: i32, const MAX: i32>(i32);

impl<const MAX: i32> BoundedInt<0, MAX> {
    pub(crate) fn zero() -> BoundedInt<0, MAX> {
        BoundedInt(0)
    }

    /// Returns the number, which cannot be negative.
    pub(crate) fn as_u32(self) -> u32 {
        self.0.unsigned_abs()
    }
}

impl<const MIN: i32, const MAX: i32> BoundedInt<MIN, MAX> {
    pub(crate) fn get(self) -> i32 {
        self.0
    }
}

impl<const MIN: i32, const MAX: i32> ConfigValue for BoundedInt<MIN, MAX> {
    fn shape() -> ValueShape {
        ValueShape::Int { min: MIN.into(), max: MAX.into() }
    }
    fn read(node: &YamlNode, reader: &mut ConfigReader) -> Option<BoundedInt<MIN, MAX>> {
        let number = read_int(node, reader, MIN.into(), MAX.into())?;
        Some(BoundedInt(i32::try_from(number).ok()?))
    }
    fn show(&self) -> Json {
        json!(self.0)
    }
}

/// Reads text of a validated format; `parse` returns the reason for a rejection.
pub(crate) fn parse_text<T>(
    node: &YamlNode,
    reader: &mut ConfigReader,
    (what, example): (&str, &str),
    parse: impl Fn(&str) -> Result<T, String>,
) -> Option<T> {
    let scalar = read_scalar(node, reader, what)?;
    match parse(&scalar.text) {
        Ok(value) => Some(value),
        Err(reason) => {
            let message = format!("{} is not {what}: {reason}", node.describe());
            reader.error(node.at, message).expected(format!("expected {what} such as {example}"));
            None
        }
    }
}

/// Implements [`ConfigValue`] for types that are parsed by `FromStr` and rendered as text.
macro_rules! text_value {
    ($($ty:ty: $what:literal, $example:literal, $pattern:expr, $show:expr;)*) => { $(
        impl $crate::value::ConfigValue for $ty {
            fn shape() -> $crate::shape::ValueShape {
                $crate::shape::ValueShape::Format {
                    what: $what,
                    example: $example,
                    pattern: $pattern,
                }
            }
            fn read(
                node: &$crate::yaml::YamlNode,
                reader: &mut $crate::reader::ConfigReader,
            ) -> Option<$ty> {
                let parse = |text: &str| text.parse::<$ty>().map_err(|reason| reason.to_string());
                $crate::value::parse_text(node, reader, ($what, $example), parse)
            }
            fn show(&self) -> serde_json::Value {
                let show: fn(&$ty) -> serde_json::Value = $show;
                show(self)
            }
        }
    )* };
}
pub(crate) use text_value;

const PERIOD_PATTERN: &str = r"^\s*([0-9]+(\.[0-9]+)?\s*([wWdDhHmMsS]|[mM][sS])\s*)+$";

text_value! {
    ConfigDuration: "a duration", "`1h30m`", Some(PERIOD_PATTERN), |period| json!(period.to_string());
    ByteSize: "a size", "`512m`", Some(r"^[0-9]+(\.[0-9]+)?\s*[kmgtKMGT]?[bB]?$"), |size| json!(size.to_string());
    UsdAmount: "an amount of money", "`2.50`", None, |usd| {
        serde_json::from_str(&usd.to_string()).unwrap_or(Json::Null)
    };
    CronExpr: "a cron expression", "`0 9 * * mon-fri`", None, |cron| json!(cron.as_str());
    ConfigTimeZone: "a time zone", "`Europe/Vienna`", None, |zone| json!(zone.name());
}

impl ConfigValue for LocalName {
    fn shape() -> ValueShape {
        let pattern = Some("^[a-zA-Z0-9][a-zA-Z0-9_-]*$");
        ValueShape::Format { what: "a name", example: "`issue-fixer`", pattern }
    }
    fn read(node: &YamlNode, reader: &mut ConfigReader) -> Option<LocalName> {
        let parse =
            |text: &str| text.parse().map_err(|error: IdParseError| error.reason.to_owned());
        parse_text(node, reader, ("a name", "`issue-fixer`"), parse)
    }
    fn show(&self) -> Json {
        json!(self.as_str())
    }
}

/// Reads one word of a closed set.
pub(crate) fn read_word(
    node: &YamlNode,
    reader: &mut ConfigReader,
    words: &[&'static str],
) -> Option<usize> {
    let what = format!("one of: {}", words.join(", "));
    let text = &read_scalar(node, reader, &what)?.text;
    let found = words.iter().position(|word| word == text);
    if found.is_none() {
        let near = did_you_mean(text, words.iter().copied());
        let message = format!("expected {what}; found {}", node.describe());
        let fault = reader.error(node.at, message).expected(format!("expected {what}"));
        if let Some(near) = near {
            fault.help(format!("did you mean `{near}`?"));
        }
    }
    found
}

/// Implements [`ConfigValue`] for enums declared by `words!`.
macro_rules! word_value {
    ($($ty:ty),* $(,)?) => { $(
        impl $crate::value::ConfigValue for $ty {
            fn shape() -> $crate::shape::ValueShape {
                let words = <$ty>::ALL.iter().map(|word| word.as_str()).collect();
                $crate::shape::ValueShape::Words(words)
            }
            fn read(
                node: &$crate::yaml::YamlNode,
                reader: &mut $crate::reader::ConfigReader,
            ) -> Option<$ty> {
                let words: Vec<&'static str> = <$ty>::ALL.iter().map(|word| word.as_str()).collect();
                let at = $crate::value::read_word(node, reader, &words)?;
                Some(<$ty>::ALL[at])
            }
            fn show(&self) -> serde_json::Value {
                serde_json::Value::from(self.as_str())
            }
        }
    )* };
}
pub(crate) use word_value;

word_value!(SessionMode, ApprovalMode);

/// A path, made absolute relative to the directory of the file that contains it. `~/` is HOME.
impl ConfigValue for Utf8PathBuf {
    fn shape() -> ValueShape {
        ValueShape::Text
    }
    fn read(node: &YamlNode, reader: &mut ConfigReader) -> Option<Utf8PathBuf> {
        let text = &read_scalar(node, reader, "a path")?.text;
        // An empty path would mean the directory of the file.
        match text.is_empty() {
            true => report_expected(reader, node, "a path"),
            false => Some(reader.resolve(node.at, text)),
        }
    }
    fn show(&self) -> Json {
        Json::String(escape_variables(self.as_str()))
    }
}

/// Text that may hold a secret. It is rendered as written, with the names of variables, never their
/// values.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretText {
    value: String,
    source_text: String,
}

impl SecretText {
    /// Returns the value with variables substituted.
    pub fn expose(&self) -> &str {
        &self.value
    }
}

impl std::fmt::Debug for SecretText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SecretText(…)")
    }
}

impl ConfigValue for SecretText {
    fn shape() -> ValueShape {
        ValueShape::Text
    }
    fn read(node: &YamlNode, reader: &mut ConfigReader) -> Option<SecretText> {
        let scalar = read_scalar(node, reader, "text")?;
        // The names of variables may be shown, their values may not.
        let written = scalar.template.as_ref().unwrap_or(&scalar.text).clone();
        Some(SecretText { value: scalar.text.clone(), source_text: written })
    }
    fn show(&self) -> Json {
        Json::String(self.source_text.clone())
    }
}

/// Environment variables by name, in a form that can be passed to a process.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct EnvVars(IndexMap<String, SecretText>);

impl EnvVars {
    /// Returns the variables in the order in which they are written.
    pub fn get(&self) -> &IndexMap<String, SecretText> {
        &self.0
    }
}

impl ConfigValue for EnvVars {
    fn shape() -> ValueShape {
        IndexMap::<String, SecretText>::shape()
    }
    fn read(node: &YamlNode, reader: &mut ConfigReader) -> Option<EnvVars> {
        for (key, value) in node.entries() {
            // The system separates name and value by `=`, and ends both with a NUL.
            if key.text.is_empty() || key.text.contains(['=', '\0']) {
                let message = format!("`{}` cannot name an environment variable", key.text);
                reader.error(key.at, message).expected("expected a name such as `PATH`");
            }
            if matches!(&value.kind, YamlKind::Scalar(scalar) if scalar.text.contains('\0')) {
                let message = format!("the value of `{}` has a NUL in it", key.text);
                reader.error(value.at, message).expected("no process can be given this");
            }
        }
        IndexMap::read(node, reader).map(EnvVars)
    }
    fn absent() -> Option<EnvVars> {
        Some(EnvVars::default())
    }
    fn show(&self) -> Json {
        self.0.show()
    }
}

/// HTTP URL. It may contain a token, so it is rendered as written, without values of variables.
#[derive(Clone, PartialEq, Eq)]
pub struct WebUrl {
    url: Url,
    source_text: String,
}

impl WebUrl {
    /// Returns the URL with variables substituted.
    pub fn expose(&self) -> &str {
        self.url.as_str()
    }
}

impl std::fmt::Debug for WebUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The path and query of a hook often contain a token.
        write!(f, "WebUrl({})", self.url.host_str().unwrap_or(""))
    }
}

impl ConfigValue for WebUrl {
    fn shape() -> ValueShape {
        ValueShape::Format { what: "a URL", example: "`https://example.com/hook`", pattern: None }
    }
    fn read(node: &YamlNode, reader: &mut ConfigReader) -> Option<WebUrl> {
        let parse = |text: &str| text.parse::<Url>().map_err(|reason| reason.to_string());
        let form = ("a URL", "`https://example.com/hook`");
        let url = parse_text(node, reader, form, parse)?;
        // Only these can be requested.
        if !matches!(url.scheme(), "http" | "https") {
            return report_expected(reader, node, "a URL that starts with http:// or https://");
        }
        // Read again for its text as written, which shows variables by name.
        let SecretText { source_text: written, .. } = SecretText::read(node, reader)?;
        Some(WebUrl { url, source_text: written })
    }
    fn show(&self) -> Json {
        Json::String(self.source_text.clone())
    }
}

/// Name of an environment variable. Config holds names of secrets, never secrets.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct VarName(String);

impl VarName {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for VarName {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<VarName, &'static str> {
        match is_variable_name(text) {
            true => Ok(VarName(text.to_owned())),
            false => Err("only letters, digits and `_` are allowed, and no digit first"),
        }
    }
}

text_value! {
    VarName: "the name of an environment variable", "`GITHUB_TOKEN`",
        Some("^[A-Za-z_][A-Za-z0-9_]*$"), |name| json!(name.as_str());
}

/// Any value, kept unchanged. Text that looks like a number is a number unless it is quoted.
impl ConfigValue for Json {
    fn shape() -> ValueShape {
        ValueShape::Any
    }
    fn read(node: &YamlNode, _: &mut ConfigReader) -> Option<Json> {
        Some(to_json(node))
    }
    fn show(&self) -> Json {
        match self {
            Json::String(text) => Json::String(escape_variables(text)),
            Json::Array(items) => items.iter().map(ConfigValue::show).collect(),
            Json::Object(map) => {
                Json::Object(map.iter().map(|(key, value)| (key.clone(), value.show())).collect())
            }
            other => other.clone(),
        }
    }
}

fn to_json(node: &YamlNode) -> Json {
    match &node.kind {
        YamlKind::Null => Json::Null,
        YamlKind::List(items) => items.iter().map(to_json).collect(),
        YamlKind::Map(entries) => Json::Object(
            entries.iter().map(|(key, value)| (key.text.clone(), to_json(value))).collect(),
        ),
        YamlKind::Scalar(YamlScalar { text, plain: false, .. }) => Json::String(text.clone()),
        // YAML's numbers and booleans are a superset of JSON's; what JSON does not know stays text.
        YamlKind::Scalar(YamlScalar { text, .. }) => match serde_json::from_str(text) {
            Ok(typed @ (Json::Bool(_) | Json::Number(_))) => typed,
            _ => Json::String(text.clone()),
        },
    }
}
