"""Names that a parameter of a variant can have: it stands in the C++ of kernels under its own."""

from __future__ import annotations

from cute_attn.variants.expression import ARGUMENTS

_KEYWORDS = """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl const
    const_cast constexpr continue decltype default delete do double dynamic_cast else enum explicit
    export extern false float for friend goto if inline int long mutable namespace new noexcept not
    not_eq nullptr operator or or_eq private protected public register reinterpret_cast return short
    signed sizeof static static_assert static_cast struct switch template this thread_local throw
    true try typedef typeid typename union unsigned using virtual void volatile wchar_t while xor
    xor_eq
"""
KEYWORDS = frozenset(_KEYWORDS.split())
"""Of C++."""

OF_FUNCTIONS = ("params", "values", "lag")
"""What the functions of hooks are given beside the hooks' own arguments."""


def check_name(what: str, name: str) -> None:
    """Raises ValueError if a parameter, `what`, cannot be called `name`."""
    taken = (*ARGUMENTS, *OF_FUNCTIONS)
    if not name.isidentifier() or not name.isascii() or name in taken or name in KEYWORDS:
        raise ValueError(
            f"a {what} is called {name!r}; it takes a C++ identifier other than {', '.join(taken)}"
        )
