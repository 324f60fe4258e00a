//! Check of a parsed expression: it rejects what is not supported, and adds charges to the rest.

use std::mem;

use cel::common::ast::{
    CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, LiteralValue, SelectExpr, SourceInfo, operators,
};

use super::meter::{CHARGE, KEY, LOOP, steps_of_text};
use crate::model::excerpt;

/// Walk through an expression, with the names in scope.
pub(super) struct Check<'a> {
    source: &'a SourceInfo,
    /// Variables, and inside of them those of each loop.
    scopes: Vec<Vec<String>>,
}

/// Reason of the rejection, and the character (from 0) that it refers to.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CheckError {
    pub(super) at: usize,
    pub(super) message: String,
}

/// Maximum nesting of an expression. Measured, each level of an evaluation takes 40 to 50 KiB of stack, optimised or not,
/// and a tokio thread has 2 MiB.
pub(super) const MAX_LEVELS: usize = 20;

/// Functions called as `f(x)`.
const FUNCTIONS: &[&str] = &["bool", "bytes", "double", "dyn", "int", "size", "string", "type", "uint"];
/// Functions called as `x.f(y)`.
const METHODS: &[&str] = &["contains", "endsWith", "size", "startsWith"];
/// Calls that can return a large value.
const LARGE: &[&str] = &[operators::ADD, operators::CONDITIONAL, operators::INDEX, "bytes", "dyn", "string"];
const MACROS: &str = "has(x.y), x.all(e, …), x.exists(e, …), x.exists_one(e, …), x.filter(e, …), x.map(e, …)";
/// Types to compare `type(x)` with. Not `type` itself: its name is taken for a variable.
const TYPES: &[&str] = &["bool", "bytes", "double", "int", "list", "map", "null_type", "string", "uint"];

// === impl Check ===

impl<'a> Check<'a> {
    pub(super) fn new(source: &'a SourceInfo, variables: &[&str]) -> Self {
        Self { source, scopes: vec![variables.iter().map(|&name| name.to_owned()).collect()] }
    }

    /// Checks a whole expression, and adds charges. Returns the steps that it takes without its charges, for any object.
    pub(super) fn run(mut self, expression: &mut IdedExpr) -> Result<u64, CheckError> {
        let steps = self.check(expression)?;
        match too_deep(expression, MAX_LEVELS) {
            Some(id) => Err(self.refuse(id, format!("expression nested too deeply (limit: {MAX_LEVELS} levels)"))),
            None => Ok(steps),
        }
    }

    /// Returns the steps of one evaluation of the whole expression, without its charges.
    fn check(&mut self, expression: &mut IdedExpr) -> Result<u64, CheckError> {
        let id = expression.id;
        match &mut expression.expr {
            Expr::Unspecified => Err(self.refuse(id, "expected an expression".to_owned())),
            Expr::Literal(LiteralValue::String(text)) => Ok(steps_of_text(text.inner().len())),
            Expr::Literal(LiteralValue::Bytes(bytes)) => Ok(steps_of_text(bytes.inner().len())),
            Expr::Literal(_) => Ok(1),
            Expr::Ident(name) => self.name(id, &[name]),
            Expr::Select(select) => match name_of(select) {
                Some((id, name)) => self.name(id, &name),
                None => Ok(self.check(&mut select.operand)? + steps_of_text(select.field.len())),
            },
            Expr::Call(call) => self.call(id, call),
            Expr::List(list) => self.all(&mut list.elements, true),
            Expr::Map(map) => map.entries.iter_mut().try_fold(1, |sum, entry| match &mut entry.expr {
                EntryExpr::MapEntry(entry) => {
                    Ok(sum + self.charged(&mut entry.key)? + self.charged(&mut entry.value)?)
                }
                EntryExpr::StructField(_) => Err(self.refuse(id, "expected a key".to_owned())),
            }),
            Expr::Struct(_) => {
                Err(self.refuse(id, "message literals are not supported; write a map: {'key': value}".to_owned()))
            }
            Expr::Comprehension(comprehension) => self.comprehension(comprehension),
        }
    }

    /// Checks a name and the fields after it. CEL looks up each prefix of the whole as a variable, in each loop from the
    /// innermost outwards until the variable is found.
    fn name(&self, id: u64, name: &[&str]) -> Result<u64, CheckError> {
        // A leading dot is CEL's prefix for the outermost name.
        let plain = name[0].strip_prefix('.').unwrap_or(name[0]);
        let mut scopes = self.scopes.iter().rev();
        let scopes = match scopes.position(|scope| scope.iter().any(|variable| variable == plain)) {
            Some(inner) => inner + 1,
            None if TYPES.contains(&plain) => self.scopes.len(),
            None => {
                // Users do not see the names of loop accumulators.
                let known = self.scopes.iter().flatten().filter(|name| !name.starts_with('@'));
                let known: Vec<_> = known.map(String::as_str).collect();
                return Err(self.refuse(
                    id,
                    format!("unknown variable {:?} (known: {})", excerpt(plain), excerpt(&known.join(", "))),
                ));
            }
        };
        let (mut length, mut steps) = (0, 0);
        for part in name {
            length += part.len() + 1;
            steps += steps_of_text(length);
        }
        Ok(scopes as u64 * steps)
    }

    fn call(&mut self, id: u64, call: &mut CallExpr) -> Result<u64, CheckError> {
        let CallExpr { func_name, target, args } = call;
        let is_operator = func_name.contains('_') && !func_name.starts_with(|c: char| c.is_alphabetic());
        let is_known = match target {
            None => is_operator || func_name == operators::IN || FUNCTIONS.contains(&&**func_name),
            Some(_) => METHODS.contains(&&**func_name),
        };
        if !is_known {
            let (functions, methods) = (FUNCTIONS.join("(x), "), METHODS.join("(…), x."));
            return Err(self.refuse(
                id,
                format!(
                    "unknown function {:?} or wrong arguments (known: {functions}(x), x.{methods}(…), {MACROS})",
                    excerpt(func_name)
                ),
            ));
        }
        let steps = match func_name.as_str() {
            // These read nothing but a boolean or a number.
            operators::CONDITIONAL
            | operators::LOGICAL_AND
            | operators::LOGICAL_OR
            | operators::LOGICAL_NOT
            | operators::NEGATE
            | operators::NOT_STRICTLY_FALSE => self.all(args, false)?,
            // A container is not read as a whole.
            operators::INDEX => match args.as_mut_slice() {
                [container, key] => self.check(container)? + self.key(key)?,
                _ => self.all(args, true)?,
            },
            operators::ADD => self.sum(args, 1)?,
            _ => self.all(args, true)?,
        };
        Ok(1 + steps + target.as_deref_mut().map_or(Ok(0), |target| self.charged(target))?)
    }

    fn comprehension(&mut self, comprehension: &mut ComprehensionExpr) -> Result<u64, CheckError> {
        let ComprehensionExpr { iter_range, iter_var, iter_var2, accu_var, accu_init, loop_cond, loop_step, result } =
            comprehension;
        let outside = self.check(iter_range)? + self.check(accu_init)?;
        let variables = [Some(&*accu_var), Some(&*iter_var), iter_var2.as_ref()];
        self.scopes.push(variables.into_iter().flatten().cloned().collect());
        // The variable is set anew for each element.
        let body = steps_of_text(iter_var.len()) + self.check(loop_cond)? + self.check(loop_step)?;
        let steps = outside + self.check(result)?;
        self.scopes.pop();
        let body = number(iter_range.id, body);
        call(LOOP, iter_range, [body]);
        Ok(1 + steps)
    }

    fn all(&mut self, expressions: &mut [IdedExpr], are_charged: bool) -> Result<u64, CheckError> {
        expressions.iter_mut().try_fold(1, |sum, expression| {
            Ok(sum + if are_charged { self.charged(expression)? } else { self.check(expression)? })
        })
    }

    /// Checks the operands of a sum. In a chain of sums an operand is copied `times` times: once for each sum that contains
    /// it.
    fn sum(&mut self, operands: &mut [IdedExpr], times: u64) -> Result<u64, CheckError> {
        operands.iter_mut().try_fold(1, |sum, operand| match &mut operand.expr {
            Expr::Call(CallExpr { func_name, args, .. }) if func_name == operators::ADD => {
                Ok(sum + self.sum(args, times + 1)?)
            }
            _ => Ok(sum + self.copied(operand, times)?),
        })
    }

    /// Checks an operand that an operation reads or copies, and adds its charge.
    fn charged(&mut self, expression: &mut IdedExpr) -> Result<u64, CheckError> {
        self.copied(expression, 1)
    }

    fn copied(&mut self, expression: &mut IdedExpr, times: u64) -> Result<u64, CheckError> {
        let steps = times * self.check(expression)?;
        let is_charged = match &expression.expr {
            // The accumulator of a loop: the expansions of `map` and `filter` append to it in place.
            Expr::Ident(name) => !name.starts_with('@'),
            Expr::Select(select) => !select.test,
            // The other calls return booleans and numbers.
            Expr::Call(call) => LARGE.contains(&&*call.func_name),
            Expr::Comprehension(_) => true,
            // Their elements were charged when they were put into them.
            Expr::List(_) | Expr::Map(_) => times > 1,
            // Their cost is known.
            _ => false,
        };
        if is_charged {
            let times = number(expression.id, times);
            call(CHARGE, expression, [times]);
        }
        Ok(steps)
    }

    /// Checks the key of a lookup, and adds its charge.
    fn key(&mut self, key: &mut IdedExpr) -> Result<u64, CheckError> {
        let steps = self.check(key)?;
        if !matches!(&key.expr, Expr::Literal(LiteralValue::String(_) | LiteralValue::Int(_))) {
            call(KEY, key, []);
        }
        Ok(steps)
    }

    fn refuse(&self, id: u64, message: String) -> CheckError {
        CheckError { at: self.source.offset_for(id).map_or(0, |(start, _)| start as usize), message }
    }
}

/// Returns the variable, its id, and its fields that form one name, such as `object.spec.a`.
fn name_of(select: &SelectExpr) -> Option<(u64, Vec<&str>)> {
    let (mut select, mut name) = (select, Vec::new());
    loop {
        if select.test {
            return None;
        }
        name.push(select.field.as_str());
        match &select.operand.expr {
            Expr::Ident(variable) => {
                name.push(variable);
                name.reverse();
                return Some((select.operand.id, name));
            }
            Expr::Select(operand) => select = operand,
            _ => return None,
        }
    }
}

/// Returns the part of an expression at `levels` levels below it, if there is one. A name such as `object.spec.a` is one
/// level.
fn too_deep(expression: &IdedExpr, levels: usize) -> Option<u64> {
    let Some(levels) = levels.checked_sub(1) else { return Some(expression.id) };
    let below = |part: &IdedExpr| too_deep(part, levels);
    match &expression.expr {
        Expr::Unspecified | Expr::Literal(_) | Expr::Ident(_) | Expr::Struct(_) => None,
        Expr::Select(select) => {
            let mut operand = &select.operand;
            while let Expr::Select(select) = &operand.expr {
                operand = &select.operand;
            }
            if matches!(operand.expr, Expr::Ident(_)) { None } else { below(&select.operand) }
        }
        Expr::Call(call) => call.target.as_deref().into_iter().chain(&call.args).find_map(below),
        Expr::List(list) => list.elements.iter().find_map(below),
        Expr::Map(map) => map.entries.iter().find_map(|entry| match &entry.expr {
            EntryExpr::MapEntry(entry) => below(&entry.key).or_else(|| below(&entry.value)),
            EntryExpr::StructField(field) => below(&field.value),
        }),
        Expr::Comprehension(comprehension) => {
            let ComprehensionExpr { iter_range, accu_init, loop_cond, loop_step, result, .. } = &**comprehension;
            [iter_range, accu_init, loop_cond, loop_step, result].into_iter().find_map(below)
        }
    }
}

fn number(id: u64, number: u64) -> IdedExpr {
    IdedExpr { id, expr: Expr::Literal(LiteralValue::Int(number.cast_signed().into())) }
}

/// Wraps an expression as the first argument of a call.
fn call<const N: usize>(function: &str, expression: &mut IdedExpr, more: [IdedExpr; N]) {
    let inner = mem::take(expression);
    expression.id = inner.id;
    expression.expr = Expr::Call(CallExpr {
        func_name: function.to_owned(),
        target: None,
        args: std::iter::once(inner).chain(more).collect(),
    });
}
