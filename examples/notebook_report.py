"""Execute a notebook that draws a plan and writes its report; Jupyter shows the same."""

import nbclient
import nbformat
from nbformat.v4 import new_code_cell, new_notebook

cells = [
    "import heteroplace\nfrom heteroplace.demo.networks import small_cnn\n\n"
    "mod, params, _ = small_cnn()\n"
    'solution = heteroplace.place(mod, params=params, costs="isolated", time_limit=1)\nsolution',
    "solution.plot()",
    'from IPython.display import IFrame\n\nsolution.report("report.html")\n'
    'IFrame("report.html", width="100%", height=700)',
]
notebook = new_notebook(cells=[new_code_cell(cell) for cell in cells])
nbclient.NotebookClient(notebook, kernel_name="python3").execute()
nbformat.write(notebook, "plan.ipynb")
print([list(cell.outputs[-1].data) for cell in notebook.cells])
