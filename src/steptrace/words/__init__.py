"""English made from codes and figures: for the terminal, for pages, and for the sentence fields of documents.

Nothing here decides anything, and no code reads what it returns: whoever needs to know a fact asks the document for its
code. The modules need nothing but the standard library, since a measured program imports some of them.
"""
