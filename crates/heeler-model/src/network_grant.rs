//! A person's answer to the question whether an agent may reach a host. The runner shows the choices,
//! and the engine records those that count for later runs. Start at [`NetworkGrantChoice`].

/// Choice of a person.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NetworkGrantChoice {
    /// The connections that wait for the answer.
    Once,
    /// Until the run ends.
    Run,
    /// In this run, and in later runs of its session.
    Session,
    /// In every run of the agent.
    Always,
    Deny,
}

impl NetworkGrantChoice {
    /// All choices, in the order in which they are offered.
    pub const ALL: [NetworkGrantChoice; 5] = [
        NetworkGrantChoice::Once,
        NetworkGrantChoice::Run,
        NetworkGrantChoice::Session,
        NetworkGrantChoice::Always,
        NetworkGrantChoice::Deny,
    ];

    /// Returns the text by which a person chooses it.
    pub fn label(self) -> &'static str {
        match self {
            NetworkGrantChoice::Once => "Allow once",
            NetworkGrantChoice::Run => "Allow for this run",
            NetworkGrantChoice::Session => "Allow for this session",
            NetworkGrantChoice::Always => "Allow always",
            NetworkGrantChoice::Deny => "Deny",
        }
    }

    /// Returns the choice with this label. A text of one's own is none.
    pub fn from_label(label: &str) -> Option<NetworkGrantChoice> {
        NetworkGrantChoice::ALL.into_iter().find(|choice| choice.label() == label)
    }
}
