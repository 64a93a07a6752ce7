//! Writes all mutants of a file into it at once, each behind a switch: `a == b` becomes `(a == b) ^ crate::mutant_switch::on(7)`.
//!
//! A switch that is off changes nothing: operands are evaluated once, in their order, and moved as before. A switch cannot be in
//! a constant expression; mutants of constant expressions are left out.

use std::collections::HashMap;

use quote::{ToTokens, quote};
use syn::spanned::Spanned;
use syn::visit_mut::{self, VisitMut};
use syn::{Arm, BinOp, Block, Expr, FieldValue, ItemFn, Pat, Signature, Stmt, Token, UnOp, parse_quote};

use crate::listing::{Genre, Mutant, Position};

/// Added to a crate's root: the switch, which reads the active mutant's id from `MUTANT` and records in the file `MUTANT_RECORD`
/// which test (by the name of its thread) reached which mutant.
pub const SWITCH: &str = r#"
#[doc(hidden)]
pub mod mutant_switch {
    use std::io::Write;
    static ACTIVE: std::sync::LazyLock<u32> =
        std::sync::LazyLock::new(|| std::env::var("MUTANT").ok().and_then(|id| id.parse().ok()).unwrap_or(u32::MAX));
    static RECORD: std::sync::LazyLock<Option<std::sync::Mutex<std::fs::File>>> = std::sync::LazyLock::new(|| {
        let path = std::env::var("MUTANT_RECORD").ok()?;
        Some(std::sync::Mutex::new(std::fs::OpenOptions::new().create(true).append(true).open(path).ok()?))
    });
    std::thread_local! {
        static SEEN: std::cell::RefCell<std::collections::HashSet<u32>> = Default::default();
    }
    pub fn on(id: u32) -> bool {
        if let Some(record) = &*RECORD
            && SEEN.try_with(|seen| seen.borrow_mut().insert(id)).unwrap_or(true)
        {
            let line = format!("{id} {}\n", std::thread::current().name().unwrap_or("?"));
            let _ = record.lock().unwrap_or_else(|e| e.into_inner()).write_all(line.as_bytes());
        }
        *ACTIVE == id
    }
}
"#;

/// A file with mutants, and the ids of those that are in it.
pub struct Written {
    pub text: String,
    pub placed: Vec<u32>,
}

/// Writes the mutants into the file's text.
///
/// # Errors
/// The text is not Rust.
pub fn write(text: &str, mutants: &[&Mutant]) -> Result<Written, syn::Error> {
    let mut file = syn::parse_file(text)?;
    let mut at: HashMap<(Position, bool), Vec<&Mutant>> = HashMap::new();
    for mutant in mutants {
        at.entry((mutant.span.start, mutant.genre == Genre::FnValue))
            .or_default()
            .push(mutant);
    }
    let mut writer = Writer {
        at,
        placed: Vec::new(),
    };
    writer.visit_file_mut(&mut file);
    Ok(Written {
        text: prettyplease::unparse(&file),
        placed: writer.placed,
    })
}

struct Writer<'a> {
    at: HashMap<(Position, bool), Vec<&'a Mutant>>,
    placed: Vec<u32>,
}

fn position(spanned: &impl Spanned) -> Position {
    let start = spanned.span().start();
    Position {
        line: start.line,
        column: start.column + 1,
    }
}

fn on(id: u32) -> Expr {
    parse_quote!(crate::mutant_switch::on(#id))
}

impl<'a> Writer<'a> {
    fn take(&self, at: Position, genre: Genre) -> Vec<&'a Mutant> {
        let found = self.at.get(&(at, genre == Genre::FnValue)).into_iter().flatten();
        found.copied().filter(|mutant| mutant.genre == genre).collect()
    }

    /// `if on { return replacement; }` before a function's body.
    fn body(&mut self, block: &mut Block, mutants: Vec<&Mutant>) {
        let mut switches = Vec::new();
        for mutant in mutants {
            let Ok(value) = syn::parse_str::<Expr>(&mutant.replacement) else {
                continue;
            };
            let on = on(mutant.id);
            let switch: Stmt = parse_quote!(if #on { return #value; });
            switches.push(switch);
            self.placed.push(mutant.id);
        }
        block.stmts.splice(0..0, switches);
    }

    /// The mutants of a function's body, which must not have been changed yet.
    fn of_body(&self, signature: &Signature, block: &Block) -> Vec<&'a Mutant> {
        // A function that returns `impl Trait` returns one type: a replacement would be another.
        if signature.output.to_token_stream().to_string().contains("impl ") {
            return Vec::new();
        }
        block
            .stmts
            .first()
            .map_or_else(Vec::new, |first| self.take(position(first), Genre::FnValue))
    }

    fn binary(&mut self, expr: &mut Expr) {
        let Expr::Binary(binary) = &*expr else { return };
        let mutants = self.take(position(&binary.op), Genre::BinaryOperator);
        let replaced: Vec<(u32, BinOp)> = mutants
            .iter()
            .filter_map(|m| Some((m.id, syn::parse_str(&m.replacement).ok()?)))
            .collect();
        let Some(&(first, _)) = replaced.first() else {
            return;
        };
        let (left, op, right) = (&*binary.left, &binary.op, &*binary.right);
        if matches!(left, Expr::Let(_)) || matches!(right, Expr::Let(_)) || chain_of_let(left) {
            return;
        }
        let chain = |operands: &dyn Fn(&BinOp) -> Expr| {
            let plain = operands(op);
            replaced.iter().rev().fold(quote!({ #plain }), |rest, (id, op)| {
                let (on, changed) = (on(*id), operands(op));
                quote!({ if #on { #changed } else #rest })
            })
        };
        let on = on(first);
        let only = replaced.len() == 1;
        *expr = match op {
            BinOp::And(_) if only => {
                parse_quote!((match (#left) { left_ => if left_ != #on { #right } else { left_ } }))
            }
            BinOp::Or(_) if only => {
                parse_quote!((match (#left) { left_ => if left_ == #on { #right } else { left_ } }))
            }
            BinOp::Eq(_) | BinOp::Ne(_) if only => parse_quote!(((#left #op #right) ^ #on)),
            BinOp::Lt(_) | BinOp::Le(_) | BinOp::Gt(_) | BinOp::Ge(_) => {
                let chain = chain(&|op| parse_quote!(*left_ #op *right_));
                parse_quote!((match (&(#left), &(#right)) { (left_, right_) => #chain }))
            }
            BinOp::AddAssign(_)
            | BinOp::SubAssign(_)
            | BinOp::MulAssign(_)
            | BinOp::DivAssign(_)
            | BinOp::RemAssign(_)
            | BinOp::BitXorAssign(_)
            | BinOp::BitAndAssign(_)
            | BinOp::BitOrAssign(_)
            | BinOp::ShlAssign(_)
            | BinOp::ShrAssign(_) => {
                let chain = chain(&|op| parse_quote!(#left #op #right));
                parse_quote!((#chain))
            }
            _ => {
                let chain = chain(&|op| parse_quote!(left_ #op (#right)));
                parse_quote!((match (#left) { left_ => #chain }))
            }
        };
        self.placed.extend(replaced.iter().map(|(id, _)| *id));
    }

    fn unary(&mut self, expr: &mut Expr) {
        let Expr::Unary(unary) = &*expr else { return };
        let Some(&mutant) = self.take(position(&unary.op), Genre::UnaryOperator).first() else {
            return;
        };
        let (on, operand) = (on(mutant.id), &*unary.expr);
        *expr = match unary.op {
            UnOp::Not(_) => parse_quote!(((!#operand) ^ #on)),
            UnOp::Neg(_) => {
                parse_quote!((match #operand { operand_ => if #on { operand_ } else { -operand_ } }))
            }
            _ => return,
        };
        self.placed.push(mutant.id);
    }
}

fn chain_of_let(expr: &Expr) -> bool {
    match expr {
        Expr::Let(_) => true,
        Expr::Binary(binary) if matches!(binary.op, BinOp::And(_)) => {
            chain_of_let(&binary.left) || chain_of_let(&binary.right)
        }
        _ => false,
    }
}

impl VisitMut for Writer<'_> {
    // Constant expressions have no switches.
    fn visit_item_const_mut(&mut self, _: &mut syn::ItemConst) {}
    fn visit_item_static_mut(&mut self, _: &mut syn::ItemStatic) {}
    fn visit_impl_item_const_mut(&mut self, _: &mut syn::ImplItemConst) {}
    fn visit_trait_item_const_mut(&mut self, _: &mut syn::TraitItemConst) {}
    fn visit_expr_const_mut(&mut self, _: &mut syn::ExprConst) {}
    fn visit_type_mut(&mut self, _: &mut syn::Type) {}
    fn visit_expr_repeat_mut(&mut self, repeat: &mut syn::ExprRepeat) {
        self.visit_expr_mut(&mut repeat.expr);
    }
    fn visit_pat_mut(&mut self, _: &mut Pat) {}

    fn visit_item_fn_mut(&mut self, function: &mut ItemFn) {
        if function.sig.constness.is_none() {
            let mutants = self.of_body(&function.sig, &function.block);
            visit_mut::visit_item_fn_mut(self, function);
            self.body(&mut function.block, mutants);
        }
    }

    fn visit_impl_item_fn_mut(&mut self, function: &mut syn::ImplItemFn) {
        if function.sig.constness.is_none() {
            let mutants = self.of_body(&function.sig, &function.block);
            visit_mut::visit_impl_item_fn_mut(self, function);
            self.body(&mut function.block, mutants);
        }
    }

    fn visit_trait_item_fn_mut(&mut self, function: &mut syn::TraitItemFn) {
        let mutants = function
            .default
            .as_ref()
            .map_or_else(Vec::new, |block| self.of_body(&function.sig, block));
        visit_mut::visit_trait_item_fn_mut(self, function);
        if let Some(block) = &mut function.default {
            self.body(block, mutants);
        }
    }

    fn visit_arm_mut(&mut self, arm: &mut Arm) {
        let guards = arm
            .guard
            .as_ref()
            .map(|(_, guard)| self.take(position(guard), Genre::MatchArmGuard));
        let deleted = self.take(position(&arm.pat), Genre::MatchArm);
        visit_mut::visit_arm_mut(self, arm);
        for mutant in guards.into_iter().flatten() {
            let Some((_, guard)) = arm.guard.take() else {
                continue;
            };
            let on = on(mutant.id);
            let guard: Expr = match mutant.replacement.as_str() {
                "true" => parse_quote!((#on || #guard)),
                _ => parse_quote!((!#on && #guard)),
            };
            arm.guard = Some((Token![if](proc_macro2::Span::call_site()), Box::new(guard)));
            self.placed.push(mutant.id);
        }
        for mutant in deleted {
            let on = on(mutant.id);
            let guard: Expr = match arm.guard.take() {
                Some((_, guard)) => parse_quote!(!#on && #guard),
                None => parse_quote!(!#on),
            };
            arm.guard = Some((Token![if](proc_macro2::Span::call_site()), Box::new(guard)));
            self.placed.push(mutant.id);
        }
    }

    fn visit_expr_struct_mut(&mut self, expr: &mut syn::ExprStruct) {
        let deleted: Vec<Option<&Mutant>> = expr
            .fields
            .iter()
            .map(|field: &FieldValue| self.take(position(field), Genre::StructField).first().copied())
            .collect();
        visit_mut::visit_expr_struct_mut(self, expr);
        // Only with the type's default below is the deleted field's value its own type's default.
        let defaults = expr
            .rest
            .as_deref()
            .is_some_and(|rest| quote!(#rest).to_string().ends_with("default ()"));
        for (field, mutant) in expr.fields.iter_mut().zip(deleted) {
            let Some(mutant) = mutant.filter(|_| defaults) else {
                continue;
            };
            let (on, value) = (on(mutant.id), &field.expr);
            field.expr = parse_quote!(if #on { Default::default() } else { #value });
            field.colon_token = Some(Default::default());
            self.placed.push(mutant.id);
        }
    }

    fn visit_expr_mut(&mut self, expr: &mut Expr) {
        let (was_binary, was_unary) = (matches!(expr, Expr::Binary(_)), matches!(expr, Expr::Unary(_)));
        visit_mut::visit_expr_mut(self, expr);
        if was_binary {
            self.binary(expr);
        } else if was_unary {
            self.unary(expr);
        }
    }
}
