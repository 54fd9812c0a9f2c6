"""The lower level as one sparse parametric program, and what follows from it: solutions, solution sets, derivatives.

``LevelTemplate`` (an expression and constraints, canonicalised once) -> ``LevelForm`` (of one owner: theta from x, constants and rows) ->
``ConvexProgram`` (numbers) -> ``LevelSolver`` (solutions, chosen ones, responses). Everything is a function of theta alone, which is
computed from x and from the data of the owner that are handed in; nothing here knows a client by its index.
"""
