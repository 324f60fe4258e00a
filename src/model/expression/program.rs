//! Compiled expression, and the only calls into the `cel` crate that parse and evaluate.

use std::{
    sync::{Arc, LazyLock},
    thread,
};

use bytes::Bytes;
use cel::{
    Context, Env, ExecutionError, ParseError, Value,
    common::{
        ast::IdedExpr,
        types::{CelBool, CelDouble, CelInt, CelList, CelNull, CelString, CelUInt},
        value::{CowVal, Val},
    },
    context::VariableResolver,
    parser::Parser,
};

pub(super) use super::body::sharing;
use super::{
    body,
    check::{Check, CheckError},
    error::{ExpressionError, Failure},
    meter, result_type,
    variables::{COUNT, EventView, OBJECT, TYPE},
};
use crate::model::{SyntaxError, excerpt};

/// Expression that has been checked.
pub(super) struct Program {
    expression: IdedExpr,
    /// Steps of the expression without its charges.
    steps: u64,
    /// Type of the results, in words, if it is known and not boolean.
    other_than_bool: Option<&'static str>,
}

/// Variables of an expression.
struct Variables<'a> {
    event: Option<EventView<'a>>,
    object: &'a dyn Val,
}

/// Stack of the parser. It recurses with the nesting of the text and with its chains of operators, in large frames:
/// measured, between 8 and 16 MiB for 4 KiB of text, unoptimised. The unused part costs nothing.
const PARSER_STACK_BYTES: usize = 64 << 20;

/// Standard library without optionals, with the charging functions.
static ENV: LazyLock<Arc<Env>> = LazyLock::new(|| {
    let mut env = Env::default().with_optional_support(false).with_stdlib();
    meter::declare(&mut env).expect("no name of the library begins with @");
    Arc::new(env)
});

// === impl Program ===

impl Program {
    pub(super) fn compile(text: &str, variables: &[&str]) -> Result<Self, ExpressionError> {
        let compiled = thread::scope(|scope| {
            let parser = thread::Builder::new().name("cel parser".to_owned()).stack_size(PARSER_STACK_BYTES);
            // The remains of a rejected text are dropped there too.
            parser.spawn_scoped(scope, || compile(text, variables)).map(thread::ScopedJoinHandle::join)
        });
        match compiled {
            Ok(Ok(compiled)) => Ok(compiled?),
            Ok(Err(_)) => Err(SyntaxError::new(text, 0, "not a CEL expression: the parser failed").into()),
            Err(error) => Err(ExpressionError::NotParsed(error.to_string())),
        }
    }

    /// Returns the type of the results, in words, if it is certain that none of them is a boolean.
    pub(super) fn other_than_bool(&self) -> Option<&'static str> {
        self.other_than_bool
    }

    /// Returns the value of a boolean expression; any other value is an error.
    pub(super) fn test(
        &self,
        budget: u64,
        event: Option<EventView<'_>>,
        body: Option<&Bytes>,
    ) -> Result<bool, Failure> {
        let is_true = |value: &dyn Val| value.downcast_ref::<CelBool>().map(|value| *value.inner());
        self.evaluate(budget, event, body, is_true)?.ok_or(Failure::Error)
    }

    pub(super) fn values(&self, budget: u64, body: &Bytes) -> Result<Vec<String>, Failure> {
        self.evaluate(budget, None, Some(body), |value| match value.downcast_ref::<CelList<'_>>() {
            Some(list) => list.inner().iter().filter_map(|element| scalar(&**element)).collect(),
            None => scalar(value).into_iter().collect(),
        })
    }

    fn evaluate<T>(
        &self,
        budget: u64,
        event: Option<EventView<'_>>,
        body: Option<&Bytes>,
        then: impl FnOnce(&dyn Val) -> T,
    ) -> Result<T, Failure> {
        let object = match body {
            None => None,
            Some(body) => Some(body::value(body).ok_or(Failure::Error)?),
        };
        let variables = Variables { event, object: object.as_deref().unwrap_or(&CelNull) };
        let mut context = Context::with_env(Arc::clone(&ENV));
        context.set_variable_resolver(&variables);
        let (result, was_enough) =
            meter::metered(budget, self.steps, || Value::resolve_val(&self.expression, &context));
        if !was_enough {
            // The result does not count: a loop may have continued without the part that failed.
            return Err(Failure::Error);
        }
        match result {
            Ok(value) => Ok(then(&*value)),
            // Every name has been checked: an undeclared one is a count that is not known.
            Err(
                ExecutionError::NoSuchKey(_)
                | ExecutionError::IndexOutOfBounds(_)
                | ExecutionError::UndeclaredReference(_),
            ) => Err(Failure::Missing),
            Err(_) => Err(Failure::Error),
        }
    }
}

// === impl Variables ===

impl VariableResolver for Variables<'_> {
    fn resolve<'b>(&'b self, name: &str) -> Option<CowVal<'b, 'b>> {
        match name {
            OBJECT => Some(CowVal::Borrowed(self.object)),
            TYPE => Some(CowVal::owned(CelString::from(self.event?.event_type))),
            COUNT => Some(CowVal::owned(CelInt::from(i64::try_from(self.event?.count?).ok()?))),
            _ => None,
        }
    }
}

/// Compiles a text, on the parser's stack.
fn compile(text: &str, variables: &[&str]) -> Result<Program, SyntaxError> {
    let parser = Parser::new().max_recursion_depth(MAX_BRACKETS);
    let (mut expression, source) = parser.parse_with_source_info(text).map_err(|errors| {
        let first = errors.errors.iter().find(|error| !error.msg.is_empty());
        first.map_or_else(|| SyntaxError::new(text, 0, "not a CEL expression"), |error| syntax_error(text, error))
    })?;
    // Before the charges are added, which wrap it.
    let other_than_bool = result_type::other_than_bool(&expression);
    let checked = Check::new(&source, variables).run(&mut expression);
    let steps = checked.map_err(|CheckError { at, message }| SyntaxError::new(text, byte_of(text, at), message))?;
    Ok(Program { expression, steps, other_than_bool })
}

/// Converts an error of the parser to a short message.
fn syntax_error(text: &str, error: &ParseError) -> SyntaxError {
    let (line, column) = (error.pos.0.max(1).unsigned_abs(), error.pos.1.max(1).unsigned_abs());
    let before: usize = text.split_inclusive('\n').take(line - 1).map(|line| line.chars().count()).sum();
    let message = error.msg.strip_prefix("Syntax error: ").unwrap_or(&error.msg);
    let found = |message: &str| match message.split(" expecting ").next().and_then(|found| found.split_once('\'')) {
        Some((_, "<EOF>'")) => "expected more".to_owned(),
        Some((_, found)) => format!("unexpected {:?}", excerpt(found.trim_end_matches('\'').trim())),
        None => "not a CEL expression".to_owned(),
    };
    let message = if message.contains("Recursion limit") {
        format!("brackets nested too deeply (limit: {MAX_BRACKETS})")
    } else if ["mismatched", "extraneous", "no viable", "token recognition"]
        .iter()
        .any(|word| message.starts_with(word))
    {
        found(message)
    } else {
        let line = message.lines().next().unwrap_or_default();
        line.chars().take(MAX_MESSAGE_CHARS).collect()
    };
    SyntaxError::new(text, byte_of(text, before + column - 1), message)
}

/// Maximum number of open brackets, twice the maximum number of levels.
const MAX_BRACKETS: u16 = 40;

/// Maximum length of the parser's message, which may quote the text.
const MAX_MESSAGE_CHARS: usize = 120;

/// Returns the byte at which a character begins, counted from 0.
fn byte_of(text: &str, character: usize) -> usize {
    text.char_indices().nth(character).map_or(text.len(), |(at, _)| at)
}

/// Returns a value as a value of an index.
fn scalar(value: &dyn Val) -> Option<String> {
    if let Some(text) = value.downcast_ref::<CelString<'_>>() {
        return Some(text.inner().to_owned());
    }
    if let Some(number) = value.downcast_ref::<CelInt>() {
        return Some(number.inner().to_string());
    }
    if let Some(number) = value.downcast_ref::<CelUInt>() {
        return Some(number.inner().to_string());
    }
    if let Some(number) = value.downcast_ref::<CelDouble>() {
        return serde_json::Number::from_f64(*number.inner()).map(|number| number.to_string());
    }
    value.downcast_ref::<CelBool>().map(|value| value.inner().to_string())
}
