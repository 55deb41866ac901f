//! Text of tables that are compiled into the program, as values that live as long as the program.
//!
//! A table is read once, so its text is never freed. Nothing else may be read this way.

use indexmap::IndexMap;
use serde::{Deserialize as _, Deserializer};

/// Text that lives as long as the program. By this name, serde does not borrow it from the input.
pub(crate) type StaticText = &'static str;

fn keep(text: String) -> &'static str {
    text.leak()
}

pub(crate) fn static_text<'de, D: Deserializer<'de>>(from: D) -> Result<&'static str, D::Error> {
    String::deserialize(from).map(keep)
}

pub(crate) fn optional_static_text<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<&'static str>, D::Error> {
    static_text(from).map(Some)
}

pub(crate) fn static_texts<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<&'static [&'static str], D::Error> {
    let texts = Vec::<String>::deserialize(from)?;
    Ok(texts.into_iter().map(keep).collect::<Vec<_>>().leak())
}

/// Reads a map as pairs, in its order.
pub(crate) fn static_pairs<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<&'static [(&'static str, &'static str)], D::Error> {
    let pairs = IndexMap::<String, String>::deserialize(from)?;
    let pairs = pairs.into_iter().map(|(key, value)| (keep(key), keep(value)));
    Ok(pairs.collect::<Vec<_>>().leak())
}

pub(crate) fn static_numbers<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<&'static [i64], D::Error> {
    Ok(Vec::<i64>::deserialize(from)?.leak())
}
