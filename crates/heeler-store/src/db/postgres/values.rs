//! Values of rusqlite as PostgreSQL sends and receives them.

use std::borrow::Cow;
use std::error::Error;

use bytes::BytesMut;
use rusqlite::types::{Value, ValueRef};
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};

type ConversionError = Box<dyn Error + Sync + Send>;

/// A column of a row, without a copy of its text.
pub(crate) struct ColumnValue<'r>(pub(crate) ValueRef<'r>);

impl<'r> FromSql<'r> for ColumnValue<'r> {
    fn from_sql(kind: &Type, raw: &'r [u8]) -> Result<ColumnValue<'r>, ConversionError> {
        Ok(ColumnValue(match *kind {
            Type::INT8 => ValueRef::Integer(i64::from_sql(kind, raw)?),
            Type::INT4 => ValueRef::Integer(i32::from_sql(kind, raw)?.into()),
            Type::INT2 => ValueRef::Integer(i16::from_sql(kind, raw)?.into()),
            Type::BOOL => ValueRef::Integer(bool::from_sql(kind, raw)?.into()),
            Type::FLOAT8 => ValueRef::Real(f64::from_sql(kind, raw)?),
            Type::BYTEA => ValueRef::Blob(raw),
            Type::TEXT | Type::VARCHAR | Type::NAME | Type::UNKNOWN => ValueRef::Text(raw),
            _ => return Err(format!("a column of type {kind} cannot be read").into()),
        }))
    }

    fn from_sql_null(_: &Type) -> Result<ColumnValue<'r>, ConversionError> {
        Ok(ColumnValue(ValueRef::Null))
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}

/// A parameter.
#[derive(Debug)]
pub(super) struct BoundValue(pub(super) Value);

impl ToSql for BoundValue {
    fn to_sql(&self, kind: &Type, out: &mut BytesMut) -> Result<IsNull, ConversionError> {
        match (&self.0, kind) {
            (Value::Null, _) => Ok(IsNull::Yes),
            (Value::Integer(number), &Type::INT8) => number.to_sql(kind, out),
            (Value::Integer(number), &Type::INT4) => i32::try_from(*number)?.to_sql(kind, out),
            (Value::Integer(number), &Type::INT2) => i16::try_from(*number)?.to_sql(kind, out),
            (Value::Integer(number), &Type::BOOL) => (*number != 0).to_sql(kind, out),
            // Counts of money and time fit without loss.
            (Value::Integer(number), &Type::FLOAT8) => (*number as f64).to_sql(kind, out),
            (Value::Integer(number), &Type::TEXT) => number.to_string().to_sql(kind, out),
            (Value::Real(number), &Type::FLOAT8) => number.to_sql(kind, out),
            (Value::Text(text), &Type::TEXT | &Type::VARCHAR | &Type::UNKNOWN) => {
                without_nul(text).as_ref().to_sql(&Type::TEXT, out)
            }
            (Value::Blob(bytes), &Type::BYTEA) => bytes.as_slice().to_sql(kind, out),
            (value, kind) => {
                Err(format!("a value of type {:?} does not fit {kind}", value.data_type()).into())
            }
        }
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

/// Removes NUL characters, which PostgreSQL does not store. An agent's output may hold them.
pub(crate) fn without_nul(text: &str) -> Cow<'_, str> {
    match text.contains('\0') {
        true => Cow::Owned(text.replace('\0', "")),
        false => Cow::Borrowed(text),
    }
}
