//! Files of a working directory from which Claude takes commands that it executes by itself: hooks
//! and MCP servers.
//!
//! They belong to the config: a change that happened while a run was alive waits for a person, and
//! until then no agent starts with it. Start at [`claude_settings_files`].

use camino::Utf8PathBuf;
use heeler_config::{AgentConfig, RuntimeConfig, SettingSource};
use heeler_model::config_change::ConfigFileKind;

use crate::config_files::normalize;

/// Returns the sources from which an agent's Claude loads settings.
pub(crate) fn setting_sources(agent: &AgentConfig) -> Vec<SettingSource> {
    match &agent.setting_sources {
        Some(sources) => sources.clone(),
        None if agent.has_explicit_working_directory => vec![SettingSource::Project],
        // In a terminal, Claude reads the instructions of its directory.
        None if matches!(agent.runtime, RuntimeConfig::Cli) => vec![SettingSource::Project],
        None => Vec::new(),
    }
}

/// Returns the files of an agent's working directory with commands that its Claude executes. They
/// need not exist.
pub fn claude_settings_files(agent: &AgentConfig) -> Vec<(Utf8PathBuf, ConfigFileKind)> {
    let is_claude = matches!(agent.runtime, RuntimeConfig::Sdk | RuntimeConfig::Cli);
    // The first job clones the repository, and no agent works there before.
    let is_cloned_later = agent.repo.is_some() && !agent.working_directory.exists();
    if !is_claude || is_cloned_later {
        return Vec::new();
    }
    let sources = setting_sources(agent);
    let project =
        [(".claude/settings.json", ConfigFileKind::Text), (".mcp.json", ConfigFileKind::Text)];
    // Settings of one person may hold secrets that the config does not know.
    let local = [(".claude/settings.local.json", ConfigFileKind::Secret)];
    let of_source = |source: SettingSource, names: &[(&str, ConfigFileKind)]| {
        let names = names.iter().filter(|_| sources.contains(&source));
        names
            .map(|(name, kind)| (normalize(&agent.working_directory.join(name)), *kind))
            .collect::<Vec<_>>()
    };
    let mut files = of_source(SettingSource::Project, &project);
    files.extend(of_source(SettingSource::Local, &local));
    files
}
