//! To come.
use crate::failure::Outcome;
use crate::place::Place;
pub(crate) fn if_foreign(_place: &Place) -> Outcome {
    Ok(())
}
