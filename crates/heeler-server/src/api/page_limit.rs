//! Number of items of a page.

use crate::problem::ProblemDetails;

/// Items per page by default.
pub(super) const PAGE_SIZE_DEFAULT: usize = 20;

/// Most items per page.
pub(super) const PAGE_SIZE_MAX: usize = 100;

/// Returns the number of items of a page, or a problem if it is out of range.
pub(super) fn check_limit(
    given: Option<usize>,
    usual: usize,
    most: usize,
) -> Result<usize, ProblemDetails> {
    match given.unwrap_or(usual) {
        limit if (1..=most).contains(&limit) => Ok(limit),
        limit => {
            Err(ProblemDetails::bad_request(format!("limit must be 1 to {most}, not {limit}")))
        }
    }
}
