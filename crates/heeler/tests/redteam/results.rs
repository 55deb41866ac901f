//! Attacks on records: forge a result, a cost, a row or a budget.
