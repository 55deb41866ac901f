//! Templates and expressions as values of a workflow file.

use serde_json::{Value as Json, json};

use super::template::{WorkflowExpression, WorkflowTemplate};
use super::template_error::TemplateParseError;
use crate::reader::ConfigReader;
use crate::shape::ValueShape;
use crate::value::{ConfigValue, NonBlankText, read_scalar};
use crate::yaml::{YamlKind, YamlNode};

impl ConfigValue for WorkflowTemplate {
    fn shape() -> ValueShape {
        ValueShape::Text
    }
    fn read(node: &YamlNode, reader: &mut ConfigReader) -> Option<WorkflowTemplate> {
        let text = &read_scalar(node, reader, "text")?.text;
        WorkflowTemplate::parse(text)
            .map_err(|error| report_template_error(node, reader, &error))
            .ok()
    }
    fn show(&self) -> Json {
        json!(self.as_str())
    }
}

/// Template of a shell command.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct CommandTemplate(pub(crate) WorkflowTemplate);

impl ConfigValue for CommandTemplate {
    fn shape() -> ValueShape {
        ValueShape::Text
    }
    fn read(node: &YamlNode, reader: &mut ConfigReader) -> Option<CommandTemplate> {
        let NonBlankText(text) = NonBlankText::read(node, reader)?;
        let template = WorkflowTemplate::parse_shell(&text);
        template
            .map_err(|error| report_template_error(node, reader, &error))
            .ok()
            .map(CommandTemplate)
    }
    fn show(&self) -> Json {
        self.0.show()
    }
}

impl ConfigValue for WorkflowExpression {
    fn shape() -> ValueShape {
        ValueShape::Format {
            what: "an expression",
            example: "`output.contains('READY')`",
            pattern: None,
        }
    }
    fn read(node: &YamlNode, reader: &mut ConfigReader) -> Option<WorkflowExpression> {
        let text = &read_scalar(node, reader, "an expression")?.text;
        let parsed = WorkflowExpression::parse(text);
        let refuse = |error: TemplateParseError| {
            let message = format!("{} is not an expression: {error}", node.describe());
            let expected = "expected one such as `output.contains('READY')`";
            reader.error(node.at, message).expected(expected);
        };
        parsed.map_err(refuse).ok()
    }
    fn show(&self) -> Json {
        json!(self.to_string())
    }
}

fn report_template_error(node: &YamlNode, reader: &mut ConfigReader, error: &TemplateParseError) {
    // The fault's own position suffices for a single line.
    let is_long =
        matches!(&node.kind, YamlKind::Scalar(scalar) if scalar.text.trim_end().contains('\n'));
    let message = match error.line.filter(|_| is_long) {
        Some(line) => format!("not a template: {error} (line {line} of this text)"),
        None => format!("not a template: {error}"),
    };
    let help = "put text that is not a template between `{% raw %}` and `{% endraw %}`";
    reader.error(node.at, message).expected("expected a template").help(help);
}
