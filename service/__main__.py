from attend_service.__main__ import main

main(prog_name="python -m service")
