//! Type of an expression's result, as far as its outermost operation proves it.

use cel::common::ast::{CallExpr, Expr, IdedExpr, LiteralValue, operators};

use super::variables::{COUNT, TYPE};

/// Returns the type of the results of an expression, in words, if it proves that none of them is a boolean. The values of the
/// object may have any type.
pub(super) fn other_than_bool(expression: &IdedExpr) -> Option<&'static str> {
    match &expression.expr {
        Expr::Literal(literal) => of_literal(literal),
        Expr::List(_) => Some("a list"),
        Expr::Map(_) => Some("a map"),
        Expr::Ident(name) => match name.strip_prefix('.').unwrap_or(name) {
            COUNT => Some("a number"),
            TYPE => Some("a string"),
            _ => None,
        },
        Expr::Call(call) => of_call(call),
        // The loops of `map` and `filter` append to a list and return it; the others return a boolean.
        Expr::Comprehension(comprehension) => match &comprehension.result.expr {
            Expr::Ident(name) if *name == comprehension.accu_var => other_than_bool(&comprehension.accu_init),
            _ => None,
        },
        Expr::Unspecified | Expr::Select(_) | Expr::Struct(_) => None,
    }
}

fn of_literal(literal: &LiteralValue) -> Option<&'static str> {
    match literal {
        LiteralValue::Int(_) | LiteralValue::UInt(_) | LiteralValue::Double(_) => Some("a number"),
        LiteralValue::String(_) => Some("a string"),
        LiteralValue::Bytes(_) => Some("bytes"),
        LiteralValue::Null => Some("null"),
        LiteralValue::Boolean(_) => None,
    }
}

fn of_call(CallExpr { func_name, args, .. }: &CallExpr) -> Option<&'static str> {
    match (func_name.as_str(), args.as_slice()) {
        (
            operators::SUBSTRACT
            | operators::MULTIPLY
            | operators::DIVIDE
            | operators::MODULO
            | operators::NEGATE
            | "double"
            | "int"
            | "size"
            | "uint",
            _,
        ) => Some("a number"),
        (operators::ADD, [left, right]) => {
            // Texts, lists and numbers can be added.
            Some(other_than_bool(left).or(other_than_bool(right)).unwrap_or("a sum"))
        }
        ("string", _) => Some("a string"),
        ("bytes", _) => Some("bytes"),
        ("type", _) => Some("a type"),
        ("dyn", [value]) => other_than_bool(value),
        (operators::CONDITIONAL, [_, yes, no]) => match (other_than_bool(yes)?, other_than_bool(no)?) {
            (yes, no) if yes == no => Some(yes),
            _ => Some("a value of another type"),
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use crate::model::expression::{Condition, Expression};

    #[test]
    fn a_selection_whose_result_is_never_a_boolean_is_refused() {
        for (text, found) in [
            ("1 + 1", "a number"),
            ("'a' + object.x", "a string"),
            ("object.a + object.b", "a sum"),
            ("-object.n", "a number"),
            ("object.n * 2 - 1", "a number"),
            ("size(object.list)", "a number"),
            ("object.list.size()", "a number"),
            ("string(object.paused)", "a string"),
            ("dyn('x')", "a string"),
            ("type(object)", "a type"),
            ("null", "null"),
            ("[true]", "a list"),
            ("{'a': true}", "a map"),
            ("object.list.map(e, e == 1)", "a list"),
            ("object.list.filter(e, e == 1)", "a list"),
            ("object.paused ? 1 : 2.5", "a number"),
            ("object.paused ? 1 : 'x'", "a value of another type"),
        ] {
            let expected = format!("expected an expression that is true or false; the result of this one is {found}");
            let error = Expression::selecting(text).unwrap_err().to_string();
            assert!(error.contains(&expected), "{text}: {error}");
            assert!(Condition::parse(text).is_err(), "{text}");
            // An index has values of any type.
            Expression::parse(text).unwrap();
        }
        for text in ["count", "type", ".count", "count + 1"] {
            assert!(Condition::parse(text).is_err(), "{text}");
        }
        for text in [
            "object.paused",
            "object['paused']",
            "object",
            "bool('true')",
            "dyn(true)",
            "object.n == 1 ? object.paused : 1",
            "[true][0]",
            "object.list.map(e, e)[0]",
            "object.list.exists(e, e)",
            "object.list.exists_one(e, e == 1)",
            "has(object.n) && 1 + 1 == 2",
            "true",
        ] {
            Expression::selecting(text).unwrap();
        }
    }
}
