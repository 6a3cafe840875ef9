"""Operators: the tasks that a model can be given, and the forms that its answer can take."""

DRAFT, IMPROVE, EXPLORE, CROSSOVER = "draft", "improve", "explore", "crossover"
REPAIR, SPECIALISE, PORT = "repair", "specialise", "port"
# number of parents of each operator
PARENTS = {DRAFT: 0, IMPROVE: 1, EXPLORE: 0, CROSSOVER: 2, REPAIR: 1, SPECIALISE: 1, PORT: 1}
OPERATORS = tuple(PARENTS)
# asks for designs in words, each of which is then drafted; not an operator, because it gives no kernel
DESIGNS = "designs"
FENCED, WHOLE, EDITS = "fenced", "whole", "edits"
FORMS = (FENCED, WHOLE, EDITS)
EDITED = (IMPROVE, REPAIR, SPECIALISE)  # operators whose answer keeps most of a parent


def answer_form(operator: str, form: str) -> str:
    """Return the form of answer for this operator: a fenced block instead of edits if there is no parent to edit."""
    return FENCED if form == EDITS and operator not in EDITED else form


# The texts below are sent to models. Their effect was measured, so measure again after changing one.
ANSWERS = {
    FENCED: """\
Answer with a sentence or two of reasoning, then exactly one fenced ```cuda block with the whole \
kernel, from /*--- to the last line, with no parts left out.""",
    WHOLE: """\
Answer only with the whole kernel as it appears in its file: the first line is /*---, and the code \
follows after ---*/, to the last line, with no parts left out, no fences and no remarks outside comments.""",
    EDITS: """\
Answer with a sentence or two of reasoning, then exactly one fenced ```edit block with the pieces of the kernel above \
that change, including its plan:

```edit
<<<<<<< SEARCH
lines of that kernel, copied exactly
=======
the lines that replace them
>>>>>>> REPLACE
```

A block contains one or more such pieces. The text under SEARCH must match the kernel's text letter for letter, \
including blanks, and only once: use as many whole lines as that needs, and no more. All other text stays unchanged.""",
}

# Tasks that depend only on the operator; `compose` writes the tasks that depend on the request.
TASKS = {
    DRAFT: """\
Write a kernel for this op from the reference. Decide first what bounds it (bytes, arithmetic or \
launches), then choose a design that comes near that bound and differs from the kernels above, if there are any. \
Correctness is more important than speed.""",
    EXPLORE: """\
Write a kernel for this op with an algorithm that none of the kernels above uses: another division of \
the work among threads, warps and blocks, another place for the values that are kept (registers, shuffles, shared \
memory, workspace), another number of passes or launches, or tensor cores where they are not used yet. Say in a \
sentence how it differs from each of them and what you expect to gain. The same design with other sizes does not \
count. Correctness is more important than speed.""",
    CROSSOVER: """\
Write one kernel that combines the strengths of both parents. For each parent, name the one thing \
that makes it faster where it is faster, then build on the parent whose structure can include the other's. If they win \
at different sizes, choose between the two ways by a specialised size with `if constexpr`, or by a knob. You may add \
an idea that neither has, if the combination needs it. Say in `note` what comes from which parent.""",
    REPAIR: """\
Find the cause of this failure and repair it with the smallest change that keeps the kernel's idea. \
Say in a sentence what was wrong, and look for the same fault elsewhere in the kernel. Abandon the idea only if it \
cannot work here.""",
}

# The first question about an op without kernels, and the questions that follow from its answer.
ASK_DESIGNS = """\
No kernel exists yet for this op. Before you write any code, name {number} clearly different designs \
for it. Decide first what bounds the op (bytes, arithmetic or launches). Two designs differ if they divide the work \
differently among threads, warps and blocks, keep data in different places (registers, shuffles, shared memory, \
clusters, workspace), use another number of passes or launches, or use another algorithm; other sizes or knobs are not \
another design. Leave out designs that cannot come near the bound.
Answer only with {number} lines, the most promising design first, each of the form `1. the idea in a sentence`."""
DRAFT_DESIGN = """\
Write a kernel by design {number}: {design}
The other designs are written separately. Use only this one, and choose the details so that it comes as near to its \
bound as possible. Correctness is more important than speed. State the idea in `note`."""
