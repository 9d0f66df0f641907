//! A launcher for each kernel: arguments named and typed from the spec, lengths checked.

use proc_macro2::{Ident, TokenStream};
use quote::{format_ident, quote};
use unio_interface::{Access, Artefacts, Elem, Kernel, KernelParam, Role};

use crate::handles::camel;

/// The module `kernels`.
pub(crate) fn expand(artefacts: &Artefacts) -> TokenStream {
    let launchers = artefacts.kernels.iter().enumerate().map(|(index, kernel)| launcher(artefacts, index, kernel));
    quote! {
        /// Launchers of single kernels, in f32.
        pub mod kernels { #(#launchers)* }
    }
}

fn launcher(artefacts: &Artefacts, index: usize, kernel: &Kernel) -> TokenStream {
    let short = kernel.symbol.strip_prefix(&format!("{}_", artefacts.set)).unwrap_or(&kernel.symbol);
    let (name, args) = (format_ident!("{}", camel(short)), format_ident!("{}Args", camel(short)));
    let (doc, symbol) = (&kernel.doc, &kernel.symbol);
    let args_doc = format!("Arguments of [`{name}`].");
    let fields = kernel.params.iter().filter(|p| !matches!(p, KernelParam::Rows { .. })).map(field);
    let checks = kernel.params.iter().map(|p| check(symbol, p, counted(kernel)));
    let values = kernel.params.iter().map(|p| value(symbol, p));
    let n = counted(kernel).map_or(quote!(0), |n| quote!(args.#n));
    let (returns, result) = returned(kernel);
    quote! {
        #[doc = #doc]
        #[derive(Clone, Debug)]
        pub struct #name(::unio::launcher::Launcher);

        #[doc = #args_doc]
        pub struct #args<'a> { #(#fields),* }

        impl #name {
            /// Symbol in the text.
            pub const SYMBOL: &'static str = #symbol;

            /// Loads the kernel; the text is compiled at its first use.
            pub fn load(device: &::unio::device::Device) -> ::std::result::Result<Self, ::unio::device::DeviceError> {
                ::unio::launcher::Launcher::load(device, super::artefacts(), #index).map(Self)
            }

            /// Launches the kernel after all that was launched before.
            pub fn launch(&self, args: #args<'_>) -> ::std::result::Result<#returns, ::unio::launcher::LaunchError> {
                #(#checks)*
                // SAFETY: number and types of the arguments come from the kernel's own parameters; lengths were checked.
                unsafe { self.0.launch(#n, &[#(#values),*])? };
                Ok(#result)
            }
        }
    }
}

fn counted(kernel: &Kernel) -> Option<Ident> {
    kernel.params.iter().find_map(|p| if let KernelParam::Count { name } = p { Some(raw(name)) } else { None })
}

/// An identifier for any legal name; words of Rust become raw, and those that cannot be get a `_`.
pub(crate) fn raw(name: &str) -> Ident {
    match name {
        "self" | "super" | "crate" | "Self" | "_" => format_ident!("{name}_"),
        // A word since edition 2024, which syn does not count among them.
        "gen" => Ident::new_raw(name, proc_macro2::Span::call_site()),
        name => syn::parse_str(name).unwrap_or_else(|_| Ident::new_raw(name, proc_macro2::Span::call_site())),
    }
}

fn rust_type(elem: Elem) -> TokenStream {
    match elem {
        Elem::I32 => quote!(i32),
        Elem::F64 => quote!(f64),
        Elem::Real | Elem::F32 => quote!(f32),
    }
}

fn field(param: &KernelParam) -> TokenStream {
    match param {
        KernelParam::Number { name } => {
            let name = raw(name);
            quote! { #[doc = "Parts of the union."] pub #name: usize }
        }
        KernelParam::Count { name } | KernelParam::Rows { name, .. } => {
            let name = raw(name);
            quote! { #[doc = "Number of elements."] pub #name: usize }
        }
        KernelParam::Buffer { name, elem, access, len, role } => {
            let ident = raw(name);
            let doc = format!("{}{}", describe(role), len.map_or(String::new(), |len| format!(", {len} elements")));
            let t = rust_type(*elem);
            let ty = match (role, access) {
                (Role::Reduced, Access::Out) => quote!(::unio::launcher::Gradient<#t>),
                (Role::Reduced, _) => quote!(&'a ::unio::launcher::Reduced<#t>),
                (Role::Scalar, _) => quote!(::unio::launcher::Words<'a, #t>),
                (_, Access::In) => quote!(&'a ::unio::launcher::Tensor<#t>),
                (_, _) => quote!(&'a mut ::unio::launcher::Tensor<#t>),
            };
            quote! { #[doc = #doc] pub #ident: #ty }
        }
    }
}

fn describe(role: &Role) -> String {
    match role {
        Role::Input => "Input".into(),
        Role::Table => "Table shared by all samples".into(),
        Role::Param => "Trainable tensor".into(),
        Role::Output => "Output".into(),
        Role::Saved => "Kept by the forward kernel for the adjoint".into(),
        Role::CotangentOf(name) => format!("Derivative of the objective by the output `{name}`"),
        Role::CotangentTo(name) => format!("Derivative of the objective by the input `{name}`"),
        Role::ParamGradient(name) => format!("Each sample's derivative by `{name}`, in the gradient scratch"),
        Role::Scalar => "Slot, state or observation".into(),
        Role::State => "State: read and advanced".into(),
        Role::Reduced => "Gradient after the reduction over the batch".into(),
    }
}

fn check(symbol: &str, param: &KernelParam, counted: Option<Ident>) -> TokenStream {
    if let KernelParam::Rows { of, row_len, .. } = param {
        let table = raw(of);
        return quote! { ::unio::launcher::check_len(#symbol, #of, #row_len, args.#table.len())?; };
    }
    let KernelParam::Buffer { name, len, role, access, .. } = param else {
        return TokenStream::new();
    };
    let ident = raw(name);
    // A table of any length has a parameter of its own that tells its rows.
    let needed = match (len, counted) {
        (Some(len), _) => quote!(#len),
        (None, Some(n)) => quote!(args.#n),
        (None, None) => return TokenStream::new(),
    };
    let given = match (role, access) {
        (Role::Reduced, _) => quote!(args.#ident.tensor().len()),
        _ => quote!(args.#ident.len()),
    };
    quote! { ::unio::launcher::check_len(#symbol, #name, #needed, #given)?; }
}

fn value(symbol: &str, param: &KernelParam) -> TokenStream {
    match param {
        KernelParam::Rows { of, row_len, .. } => {
            let table = raw(of);
            quote!(::unio::device::Arg::I32(::unio::launcher::check_count(#symbol, args.#table.len() / #row_len)?))
        }
        KernelParam::Count { name } | KernelParam::Number { name } => {
            let name = raw(name);
            quote!(::unio::device::Arg::I32(::unio::launcher::check_count(#symbol, args.#name)?))
        }
        KernelParam::Buffer { name, role: Role::Reduced, .. } => {
            let name = raw(name);
            quote!(args.#name.tensor().arg())
        }
        KernelParam::Buffer { name, .. } => {
            let name = raw(name);
            quote!(args.#name.arg())
        }
    }
}

/// A reducer turns the room for a gradient into a reduced gradient.
fn returned(kernel: &Kernel) -> (TokenStream, TokenStream) {
    for param in &kernel.params {
        if let KernelParam::Buffer { name, elem, access: Access::Out, role: Role::Reduced, .. } = param {
            let (name, t) = (raw(name), rust_type(*elem));
            return (quote!(::unio::launcher::Reduced<#t>), quote!(args.#name.reduced()));
        }
    }
    (quote!(()), quote!(()))
}
