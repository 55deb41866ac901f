//! Questions that agents ask people (`AskUserQuestion`), and their answers.
//!
//! The answers become part of the tool's input, keyed by the text of each question.

use serde_json::{Map, Value as Json};

/// Returns the questions in the input of the tool.
pub fn questions(input: &Json) -> &[Json] {
    input["questions"].as_array().map_or(&[], Vec::as_slice)
}

/// Returns the options of a question.
pub fn options(question: &Json) -> &[Json] {
    question["options"].as_array().map_or(&[], Vec::as_slice)
}

/// Returns true if more than one option may be chosen.
pub fn allows_multiple(question: &Json) -> bool {
    question["multiSelect"] == Json::Bool(true)
}

/// Resolves a typed line to an answer.
///
/// Option numbers become their labels. The line itself is the answer if it is not a list of
/// numbers, equals a label, or is in quotes.
pub fn resolve_choice(question: &Json, line: &str) -> Result<String, String> {
    let options = options(question);
    let label = |option: &Json| text(&option["label"]).to_owned();
    let quoted = line.strip_prefix('"').and_then(|line| line.strip_suffix('"'));
    let parts = line.split([',', ' ']).filter(|part| !part.is_empty());
    let numbers: Result<Vec<i64>, _> = parts.map(str::parse).collect();
    // Quotes mark a text that would otherwise be taken for a number.
    let numbers = match (quoted, numbers) {
        (Some(own), _) => return Ok(own.to_owned()),
        (None, Ok(numbers)) if !options.is_empty() => numbers,
        _ => return Ok(line.to_owned()),
    };
    // An option may be a number itself; its label then wins over its position.
    if options.iter().any(|option| label(option) == line) {
        return Ok(line.to_owned());
    }
    if numbers.len() > 1 && !allows_multiple(question) {
        return Err("only one option can be chosen".to_owned());
    }
    let pick = |number: i64| {
        let place = usize::try_from(number).ok().and_then(|number| number.checked_sub(1));
        place.and_then(|place| options.get(place)).map(label).ok_or_else(|| {
            let last = options.len();
            format!("there is no option {number}: choose 1 to {last}, or type \"{number}\" in quotes if that is your answer")
        })
    };
    Ok(numbers.into_iter().map(pick).collect::<Result<Vec<String>, String>>()?.join(", "))
}

/// Returns the tool input with the answers to all questions. The whole reply answers a single
/// question; several questions need one line each.
pub fn fill_answers(input: &Json, reply: &str) -> Result<Json, String> {
    let questions = questions(input);
    let reply = reply.trim();
    let lines: Vec<&str> = match questions.len() {
        // A single answer may have several lines.
        1 => vec![reply],
        _ => reply.lines().map(str::trim).filter(|line| !line.is_empty()).collect(),
    };
    if questions.is_empty() {
        return Err("it has no question that text can answer".to_owned());
    }
    if lines.len() != questions.len() || lines.contains(&"") {
        let all = questions.len();
        return Err(format!("it has {all} questions: answer each on a line of its own"));
    }
    let mut answers = Map::new();
    for (question, line) in questions.iter().zip(lines) {
        answers
            // The text of the question is the key that Claude expects.
            .insert(text(&question["question"]).to_owned(), resolve_choice(question, line)?.into());
    }
    let mut input = input.clone();
    input["answers"] = Json::Object(answers);
    Ok(input)
}

/// Returns the answers in a tool input as text, one per line.
pub fn format_answers(input: &Json) -> Option<String> {
    let answers = input["answers"].as_object()?;
    let said = |answer: &Json| answer.as_str().map_or_else(|| answer.to_string(), str::to_owned);
    Some(answers.values().map(said).collect::<Vec<_>>().join("\n"))
}

fn text(value: &Json) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn one_question_takes_the_whole_reply_and_several_a_line_each() {
        let options = json!([{"label": "red"}, {"label": "blue"}]);
        let one = json!({"questions": [{"question": "Which?", "options": options}]});
        let answer =
            |input: &Json, reply: &str| fill_answers(input, reply).map(|it| it["answers"].clone());
        assert_eq!(answer(&one, " 2 \n"), Ok(json!({"Which?": "blue"})));
        assert_eq!(answer(&one, "green,\nI think"), Ok(json!({"Which?": "green,\nI think"})));
        assert!(answer(&one, "3").unwrap_err().contains("there is no option 3"));
        assert!(answer(&one, " ").unwrap_err().contains("1 questions"));
        let two = json!({"questions": [{"question": "A?"}, {"question": "B?"}]});
        assert_eq!(answer(&two, "x\n\ny"), Ok(json!({"A?": "x", "B?": "y"})));
        assert!(answer(&two, "x").unwrap_err().contains("2 questions"));
        assert!(answer(&json!({}), "x").is_err());
        assert_eq!(fill_answers(&one, "1").unwrap()["questions"], one["questions"]);
    }
}
