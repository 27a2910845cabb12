"""What is to be known of a run, for people: the facts, and one HTML file with all of them.

facts.py      settings, curves and kept evaluations of a run and of those beside it
charts.py     lines as SVG, in the colours of the page that they stand in
document.py   tables and sections as HTML
report.py     `hdccf report RUN`: all of it in one file
"""
