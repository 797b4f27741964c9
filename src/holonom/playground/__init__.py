"""A local page on which one watches a network learn a plane, and changes everything while it runs.

``holonom play`` starts it. A :class:`~holonom.playground.run.Run` trains one or two arms; the
:class:`~holonom.playground.engine.Engine` plays it in a thread and makes frames for pages that wait for one;
:func:`~holonom.playground.script.script` writes the program that repeats it.
"""
