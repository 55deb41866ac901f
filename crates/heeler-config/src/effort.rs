//! Reasoning effort of models, as far as agents let it be chosen.

use crate::value::word_value;
use crate::words::words;

words! {
    /// Reasoning effort of a model.
    pub enum ReasoningEffort ("reasoning effort") {
        /// Least reasoning: fast and cheap.
        Low = "low",
        /// Moderate reasoning.
        Medium = "medium",
        /// Thorough reasoning.
        High = "high",
        /// More than `high`.
        Xhigh = "xhigh",
        /// As much as the model can.
        Max = "max",
    }
}

word_value!(ReasoningEffort);

impl ReasoningEffort {
    /// Words that [`ReasoningEffort::from_variant`] accepts.
    pub const VARIANTS: [&str; 7] = ["off", "minimal", "low", "medium", "high", "xhigh", "max"];

    /// Returns the effort that a word of a workflow means. Models reason at least a little, so Last
    /// Light's words for less than `low` mean that.
    pub fn from_variant(word: &str) -> Option<ReasoningEffort> {
        match word.trim() {
            "off" | "minimal" => Some(ReasoningEffort::Low),
            word => word.parse().ok(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_of_a_workflow_is_an_effort() {
        let known =
            ReasoningEffort::VARIANTS.map(|word| ReasoningEffort::from_variant(word).is_some());
        assert_eq!(known, [true; 7]);
        assert_eq!(ReasoningEffort::from_variant(" minimal\n"), Some(ReasoningEffort::Low));
        assert_eq!(ReasoningEffort::from_variant("deep"), None);
    }
}
